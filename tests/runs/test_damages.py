"""A damaged run folder gives the right result or one sentence: never a traceback, never a wrong number."""

import shutil
from collections import Counter
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from safetensors.torch import load_file, save_file

from support.errors import refused
from support.scripts import load_script
from testdg.runs import read_result
from testdg.runs.source import read_warm


@pytest.fixture(scope="module")
def damages() -> ModuleType:
    return load_script("damages")


@pytest.fixture
def site(damages: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("TESTDG_CACHE", str(tmp_path / "cache"))
    return damages.Site(tmp_path)


def test_no_damage_gives_a_wrong_number_or_a_traceback(damages: ModuleType, tmp_path: Path) -> None:
    found = damages.try_damages(tmp_path, damages.SHORT)
    assert [(damage, end) for damage, end in found if end not in ("right", "sentence")] == []
    ends = Counter(end for _, end in found)
    assert min(ends["right"], ends["sentence"]) >= 20  # damages that matter, and some that do not
    assert {damage.kind for damage, _ in found} == damages.KINDS.keys()


def test_a_result_must_belong_to_the_configuration_next_to_it(site: Any) -> None:
    folder = site.result.folder
    shutil.copyfile(site.other / "result.json", folder / "result.json")
    for read in (read_result, lambda _: site.run(folder.parent)):
        with refused("damaged-folder", folder / "result.json", "config.toml"):
            read(folder)
    (folder / "config.toml").unlink()
    with refused("damaged-folder", folder / "config.toml"):
        read_result(folder)


def test_a_cached_warm_up_with_one_other_bit_is_not_used(site: Any, tmp_path: Path) -> None:
    path, other = sorted((tmp_path / "template" / "cache" / "warm-ups").iterdir())
    key = path.stem.removeprefix("eata-")
    warm = read_warm(path, key)
    with refused("damaged-file", other):
        read_warm(other, key)
    data = bytearray(path.read_bytes())
    data[-9] ^= 64
    path.write_bytes(data)
    assert load_file(path).keys() == warm.keys()
    with refused("damaged-file", path):
        read_warm(path, key)
    save_file(warm, path)  # without a checksum
    with refused("damaged-file", path):
        read_warm(path, key)
