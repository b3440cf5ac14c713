"""Other processes in a run folder during a run, and signals."""

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from support.errors import refused
from support.runs import SMALL, Disturbed, small_run, without_seconds
from testdg.files import Busy, locked, replace_text, replacing
from testdg.models import VisionModel
from testdg.runs import Result, run
from testdg.runs.folder import RunFolder
from testdg.runs.loop import graceful_interrupt


def saving_run(model: VisionModel, out: Path, **more: Any) -> Result:
    return small_run(model, out, **{"save_every": 0.0, **more})


def test_a_deleted_folder_is_not_created_again(model: VisionModel, tmp_path: Path) -> None:
    with refused("folder-replaced", tmp_path):
        saving_run(model, tmp_path, observer=Disturbed(shutil.rmtree))
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_another_run_has_replaced_is_left_alone(model: VisionModel, tmp_path: Path) -> None:
    def replace(folder: Path) -> None:
        shutil.rmtree(folder)
        saving_run(model, tmp_path)

    with refused("folder-replaced", tmp_path):
        saving_run(model, tmp_path, observer=Disturbed(replace))
    again = saving_run(model, tmp_path)
    assert len((again.folder / "events.jsonl").read_text().splitlines()) == 6


def test_a_lock_on_a_deleted_file_is_not_valid(tmp_path: Path) -> None:
    with locked(tmp_path / ".lock", "busy") as lock:
        assert lock.valid
        (tmp_path / ".lock").unlink()
        assert not lock.valid
        with locked(tmp_path / ".lock", "busy") as other:
            assert other.valid
            assert not lock.valid


def test_one_of_many_simultaneous_runs_starts_and_the_others_are_refused(model: VisionModel, tmp_path: Path) -> None:
    config = {"protocol": {"benchmark": "b"}, "method": {"name": "m"}}
    barrier, refusals, inside = threading.Barrier(8), [], []

    def start() -> None:
        folder = RunFolder(tmp_path / "run", config)
        barrier.wait()
        try:
            with folder.open():
                inside.append(folder)
                done.wait(20)
        except Busy as error:
            refusals.append(str(error))

    done = threading.Event()
    threads = [threading.Thread(target=start) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(0.5)
    done.set()
    for thread in threads:
        thread.join()
    assert len(inside) == 1
    assert len(refusals) == 7
    assert all(str(tmp_path / "run") in message for message in refusals)
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == [".lock", "config.toml"]


def test_a_folder_is_free_once_its_run_ends_or_fails(tmp_path: Path) -> None:
    config = {"protocol": {"benchmark": "b"}, "method": {"name": "m"}}
    first, second, third = (RunFolder(tmp_path / "run", config) for _ in range(3))  # all of them stay alive
    with first.open(), pytest.raises(Busy):
        second.open().__enter__()
    with pytest.raises(ZeroDivisionError), second.open():
        raise ZeroDivisionError
    with third.open():
        pass


def test_two_writers_of_one_file_have_files_of_their_own(tmp_path: Path) -> None:
    with replacing(tmp_path / "a") as one, replacing(tmp_path / "a") as other:
        assert one != other
        one.write_text("1")
        other.write_text("2")
    assert (tmp_path / "a").read_text() == "1"  # the outer one ends last
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def test_leftovers_of_a_crash_are_removed(model: VisionModel, tmp_path: Path) -> None:
    whole = saving_run(model, tmp_path / "whole")
    folder = saving_run(model, tmp_path / "crashed").folder
    (folder / "result.json").unlink()
    (folder / "state").rename(folder / "state.old")
    (folder / "state.new").mkdir()
    (folder / ".config.toml.1-2.new").write_text("half")
    again = saving_run(model, tmp_path / "crashed")
    assert [d.error for d in again.domains] == [d.error for d in whole.domains]
    assert {path.name for path in folder.iterdir()} == {".lock", "config.toml", "events.jsonl", "state", "result.json"}


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Path, int]]:
    """Files and folders that are forced to disk, in order, each with its size at that moment."""
    if not os.path.exists("/proc/self/fd"):
        pytest.skip("needs the names of open files")
    found: list[tuple[Path, int]] = []
    plain = os.fsync

    def fsync(number: int) -> None:
        found.append((Path(os.readlink(f"/proc/self/fd/{number}")), os.fstat(number).st_size))
        plain(number)

    monkeypatch.setattr(os, "fsync", fsync)
    return found


def test_a_file_is_forced_to_disk_and_then_its_name(tmp_path: Path, synced: list[tuple[Path, int]]) -> None:
    replace_text(tmp_path / "a", "123")
    (file, size), (folder, _) = synced
    assert (file.parent, size) == (tmp_path, 3)
    assert folder == tmp_path


def test_events_are_on_disk_before_the_state_that_counts_them(
    model: VisionModel, tmp_path: Path, synced: list[tuple[Path, int]]
) -> None:
    lines = (saving_run(model, tmp_path).folder / "events.jsonl").read_bytes().splitlines(keepends=True)
    on_disk = states = 0
    for path, size in synced:
        if path.name == "events.jsonl":
            on_disk = size
        elif path.name == "state.json":  # one after every batch
            states += 1
            assert on_disk == sum(map(len, lines[:states]))
    assert states == len(lines) == 6


# Signals


@pytest.mark.usefixtures("interruptible")
def test_an_interrupted_run_saves_its_state_first(model: VisionModel, tmp_path: Path) -> None:
    whole = saving_run(model, tmp_path / "whole")
    observer = Disturbed(lambda _: signal.raise_signal(signal.SIGINT))
    with pytest.raises(KeyboardInterrupt):
        saving_run(model, tmp_path / "stopped", observer=observer, save_every=1e9)
    note = json.loads((observer.folder / "state" / "state.json").read_text())["note"]
    assert 0 < note["batches"] < 6
    assert len((observer.folder / "events.jsonl").read_text().splitlines()) == note["batches"]
    again = saving_run(model, tmp_path / "stopped")
    assert without_seconds(again) == without_seconds(whole)
    assert (again.folder / "events.jsonl").read_bytes() == (whole.folder / "events.jsonl").read_bytes()


@pytest.mark.usefixtures("interruptible")
def test_a_second_signal_interrupts_at_once() -> None:
    before = signal.getsignal(signal.SIGINT)
    with graceful_interrupt() as stop:
        assert not stop()
        signal.raise_signal(signal.SIGINT)
        assert stop()
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before


# Other processes

LONG: dict[str, Any] = {**SMALL, "images": 14, "domains": ["gaussian_noise", "fog", "contrast"], "batch_size": 2}
SCRIPT = f"""
import sys
from testdg.runs import run
from testdg.runs.observer import Observer

class Printer(Observer):
    def advanced(self, run, entries):
        print("advanced", flush=True)

_, model, out, seconds = sys.argv
run("digits-c", "tent", model=model, out=out, save_every=float(seconds), observer=Printer(), **{LONG!r})
"""


def start_process(model: Path, out: Path, save_every: float) -> subprocess.Popen[str]:
    """Start a run in another process, and wait for its first batches."""
    command = [sys.executable, "-c", SCRIPT, str(model), str(out), str(save_every)]
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    process = subprocess.Popen(command, env={**os.environ, "OMP_NUM_THREADS": "1"}, text=True, **pipes)
    assert process.stdout is not None
    assert process.stdout.readline() == "advanced\n"
    return process


@pytest.mark.skipif(sys.platform == "win32", reason="Windows ends processes without asking")
def test_a_terminated_process_saves_its_state(model_folder: Path, tmp_path: Path) -> None:
    process = start_process(model_folder, tmp_path, 60.0)
    process.terminate()
    _, errors = process.communicate()
    assert "KeyboardInterrupt" in errors
    assert list(tmp_path.glob("*/state/state.json"))


@pytest.mark.usefixtures("one_thread")
@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no SIGKILL")
def test_a_killed_run_ends_as_an_undisturbed_one(model_folder: Path, tmp_path: Path) -> None:
    process = start_process(model_folder, tmp_path / "killed", 0.0)
    while sum(path.read_bytes().count(b"\n") for path in tmp_path.glob("killed/*/events.jsonl")) < 9:
        assert process.poll() is None
        time.sleep(0.001)
    process.kill()
    process.communicate()
    assert not list(tmp_path.glob("killed/*/result.json"))
    found = {}
    for name in ("killed", "undisturbed"):
        result = run("digits-c", "tent", model=model_folder, out=tmp_path / name, save_every=0.0, **LONG)
        found[name] = without_seconds(result), (result.folder / "events.jsonl").read_bytes()
    assert found["killed"] == found["undisturbed"]
