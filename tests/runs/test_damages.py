"""A damaged run folder gives the right result or one sentence: never a traceback, never a wrong number."""

import importlib.util
import json
import shutil
from collections import Counter
from pathlib import Path
from types import ModuleType

import pytest
from safetensors.torch import load_file, save_file

from testdg.errors import UserError
from testdg.runs import read_result
from testdg.runs.source import read_warm

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "damages.py"


@pytest.fixture(scope="module")
def damages() -> ModuleType:
    spec = importlib.util.spec_from_file_location("damages", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_no_damage_is_silently_wrong_and_none_gives_a_traceback(damages: ModuleType, tmp_path: Path) -> None:
    found = damages.try_damages(tmp_path, damages.SHORT)
    assert [(damage, end) for damage, end in found if end not in ("right", "sentence")] == []
    ends = Counter(end for _, end in found)
    assert min(ends["right"], ends["sentence"]) >= 20  # damages that matter, and some that do not
    assert {damage.kind for damage, _ in found} == damages.KINDS.keys()


def test_results_must_belong_to_the_configuration_beside_them(
    damages: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TESTDG_CACHE", str(tmp_path / "cache"))
    site = damages.Site(tmp_path)
    folder = site.result.folder
    shutil.copyfile(site.other / "result.json", folder / "result.json")
    for read in (read_result, lambda _: site.run(folder.parent)):
        with pytest.raises(UserError, match=r"result\.json is damaged \(it belongs to another configuration"):
            read(folder)
    stored = json.loads((folder / "result.json").read_text())
    del stored["checksum"], stored["events"]  # as older ones are
    (folder / "result.json").write_text(json.dumps(stored))
    with pytest.raises(UserError, match="it belongs to another configuration"):
        read_result(folder)
    (folder / "config.toml").unlink()
    assert read_result(folder).to_dict() == stored


def test_a_state_from_before_there_were_checksums_must_be_made_again(
    damages: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TESTDG_CACHE", str(tmp_path / "cache"))
    site = damages.Site(tmp_path)
    path = next((tmp_path / "template" / "stopped").glob("*/state/state.json"))
    stored = json.loads(path.read_text())
    del stored["checksums"]
    path.write_text(json.dumps(stored))
    with pytest.raises(UserError, match=r"checksums.*delete the folder .* to start again"):
        site.run(tmp_path / "template" / "stopped")


def test_a_warm_up_with_one_other_bit_is_not_used(
    damages: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TESTDG_CACHE", str(tmp_path / "cache"))
    damages.Site(tmp_path)
    path, other = sorted((tmp_path / "template" / "cache" / "warm-ups").iterdir())
    key = path.stem.removeprefix("eata-")
    warm = read_warm(path, key)
    with pytest.raises(UserError, match="is damaged"):
        read_warm(other, key)
    data = bytearray(path.read_bytes())
    data[-9] ^= 64
    path.write_bytes(data)
    assert load_file(path).keys() == warm.keys()
    with pytest.raises(UserError, match="is damaged"):
        read_warm(path, key)
    save_file(warm, path)  # without a checksum
    with pytest.raises(UserError, match="is damaged"):
        read_warm(path, key)
