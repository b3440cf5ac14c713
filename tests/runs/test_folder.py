import json
import os
import tomllib
from pathlib import Path
from typing import Any

import pytest

from support.errors import refused
from support.runs import small_run, without_seconds
from testdg.files import writing
from testdg.models import VisionModel
from testdg.runs import read_result
from testdg.runs.events import count_changes, mean_diagnostic, read_entry
from testdg.runs.folder import RunFolder


def test_a_run_folder_holds_what_is_documented(model: VisionModel, tmp_path: Path) -> None:
    result = small_run(model, tmp_path)
    assert result.folder.parent == tmp_path
    assert result.folder.name.startswith("digits-c-tent-")
    config = tomllib.loads((result.folder / "config.toml").read_text())
    assert config == {"protocol": result.record, "method": result.method}
    events = [json.loads(line) for line in (result.folder / "events.jsonl").read_text().splitlines()]
    assert [event["batch"] for event in events] == list(range(6))
    assert json.loads((result.folder / "state" / "state.json").read_text())["note"]["batches"] == 6
    errors = sum(e["errors"] for e in events if e["domain"] == "fog")
    assert result.domains[0].error == pytest.approx(100 * errors / 10)


def test_a_complete_run_is_read_back_and_not_written_again(model: VisionModel, tmp_path: Path) -> None:
    first = small_run(model, tmp_path)
    before = {p: p.stat().st_mtime_ns for p in first.folder.rglob("*") if p.is_file()}
    assert small_run(model, tmp_path) == first
    assert {p: p.stat().st_mtime_ns for p in first.folder.rglob("*") if p.is_file()} == before


class Stop(Exception):
    pass


@pytest.mark.parametrize(
    ("batches", "protocol"),
    [
        *((batches, "continual") for batches in (1, 3, 4)),
        (3, "continual,resets=domain"),
        (7, "gradual"),
        (5, "cyclic"),
        (3, "mixed"),
        (4, "dirichlet"),
    ],
)
def test_a_stopped_run_resumes_from_its_state(
    model: VisionModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, batches: int, protocol: str
) -> None:
    whole = small_run(model, tmp_path / "whole", save_every=0, protocol=protocol)
    save = RunFolder.save

    def save_and_stop(self: RunFolder, online: Any, done: int, seconds: float) -> None:
        save(self, online, done, seconds)
        if done == batches:
            entry = {"batch": done, "domain": "fog", "phase": "adapt", "images": 4, "errors": 4, "diagnostics": {}}
            self.append([{**entry, "parts": []}])
            raise Stop

    with monkeypatch.context() as patch:
        patch.setattr(RunFolder, "save", save_and_stop)
        with pytest.raises(Stop):
            small_run(model, tmp_path / "stopped", save_every=0, protocol=protocol)
    resumed = small_run(model, tmp_path / "stopped", save_every=0, protocol=protocol)
    assert without_seconds(resumed) == without_seconds(whole)
    name = "events.jsonl"
    assert (resumed.folder / name).read_bytes() == (whole.folder / name).read_bytes()


def test_any_run_folder_can_be_read(model: VisionModel, tmp_path: Path) -> None:
    result = small_run(model, tmp_path)
    assert read_result(result.folder) == result
    assert read_result(str(result.folder)).folder == result.folder
    with refused("no-result", tmp_path, "result.json"):
        read_result(tmp_path)


def unfinished(model: VisionModel, out: Path) -> Path:
    folder = small_run(model, out).folder
    (folder / "result.json").unlink()
    return folder


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("config.toml", "[protocol"),
        ("config.toml", "benchmark = 1"),
        ("state/state.json", "{"),
        ("state/state.json", "{}"),
        ("state/state.safetensors", "short"),
        ("state/state.json", '{"note": {"batches": "x", "seconds": 0}, "values": {}}'),
        ("state/state.json", '{"note": {"batches": -1, "seconds": 0}, "values": {}}'),
        ("events.jsonl", '{"batch": 0}\n'),
        ("events.jsonl", "{\n" * 6),
    ],
)
def test_a_damaged_folder_is_refused_with_the_file_and_the_remedy(
    model: VisionModel, tmp_path: Path, name: str, content: str
) -> None:
    folder = unfinished(model, tmp_path)
    (folder / name).write_text(content)
    with refused("damaged-folder", folder / name.partition("/")[0], f"delete the folder {folder}"):
        small_run(model, tmp_path)


def test_truncated_tensors_are_refused(model: VisionModel, tmp_path: Path) -> None:
    path = unfinished(model, tmp_path) / "state" / "state.safetensors"
    path.write_bytes(path.read_bytes()[:-50])
    with refused("damaged-folder", path.parent):
        small_run(model, tmp_path)


@pytest.mark.parametrize(
    ("content", "code"), [("", "no-events"), ('{"batch": 0}\n' * 6, "damaged-folder"), ("[]\n", "damaged-folder")]
)
def test_the_log_of_a_complete_run_is_checked(model: VisionModel, tmp_path: Path, content: str, code: str) -> None:
    path = small_run(model, tmp_path).folder / "events.jsonl"
    path.write_text(content)
    with refused(code, path, "delete the folder"):
        small_run(model, tmp_path)


@pytest.mark.parametrize(
    ("key", "value"), [("errors", None), ("images", "4"), ("domain", 3), ("batch", 5), ("parts", {})]
)
def test_a_log_entry_of_the_wrong_type_is_refused(model: VisionModel, tmp_path: Path, key: str, value: object) -> None:
    path = small_run(model, tmp_path).folder / "events.jsonl"
    first, rest = path.read_text().split("\n", 1)
    path.write_text(json.dumps({**json.loads(first), key: value}) + "\n" + rest)
    with refused("damaged-folder", path, "line 1", key):
        small_run(model, tmp_path)


@pytest.mark.parametrize("content", ["{", "[]", "{}", '{"domains": 3}', None])
def test_a_damaged_result_is_refused(model: VisionModel, tmp_path: Path, content: str | None) -> None:
    path = small_run(model, tmp_path).folder / "result.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "seconds": 0}) if content is None else content)
    with refused("damaged-folder", path, f"delete the folder {path.parent}"):
        small_run(model, tmp_path)


def test_a_run_without_its_state_starts_again(model: VisionModel, tmp_path: Path) -> None:
    first = small_run(model, tmp_path)
    (first.folder / "result.json").unlink()
    (first.folder / "state").rename(tmp_path / "elsewhere")
    assert without_seconds(small_run(model, tmp_path)) == without_seconds(first)


def test_a_folder_that_cannot_be_written_is_refused(model: VisionModel, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with refused("cannot-write", tmp_path / "file", "--out"):
        small_run(model, tmp_path / "file")


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs a device that is always full")
def test_a_full_disk_is_refused() -> None:
    def fill() -> None:
        with writing(Path("/dev")), open("/dev/full", "w") as file:
            file.write("x")
            file.flush()

    with refused("cannot-write", "No space left on device"):
        fill()


def test_log_entries_hold_the_diagnostics_of_a_method() -> None:
    about = {"batch": 0, "domain": "fog", "phase": "adapt", "images": 2, "errors": 1, "parts": []}
    event = read_entry(0, json.dumps({**about, "diagnostics": {"change": True, "gap": 0.5}}).encode())
    assert (event["errors"], count_changes([event]), mean_diagnostic([event], "gap")) == (1, 1, 0.5)
    silent = read_entry(0, json.dumps({**about, "diagnostics": {}}).encode())
    assert (count_changes([silent]), mean_diagnostic([silent], "gap")) == (None, None)
    with pytest.raises(KeyError, match="diagnostics"):
        read_entry(0, json.dumps(about).encode())
