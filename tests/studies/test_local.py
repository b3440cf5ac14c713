"""Runs in real processes; nothing here depends on the clock of the machine."""

import gc
import multiprocessing
import os
import signal
import sys
import threading
from pathlib import Path
from typing import Any

import msgspec
import pytest

from support.errors import refused
from testdg.files import locked
from testdg.runs import run
from testdg.studies import Complete, Failed, Grid, Local, News, Running, RunSpec, bench, expand, prepare
from testdg.studies.local import threads_per_job

DOMAINS = ["fog", "contrast"]


@pytest.fixture
def values(model: Path) -> dict[str, Any]:
    return {"method": "tent", "model": str(model), "device": "cpu", "images": 6, "domains": DOMAINS, "seeds": [0, 1]}


def test_runs_give_the_same_as_alone_and_a_failing_one_stops_no_other(
    values: dict[str, Any], model: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    specs = expand(Grid(values))
    alone = run("digits-c", "tent", model=model, device="cpu", images=6, domains=DOMAINS, out=tmp_path)
    (alone.folder / "result.json").write_text("{")
    news: list[News] = []
    source, broken, other = bench(specs, tmp_path, engine=Local(2), notify=news.append)
    assert isinstance(broken, Failed)
    assert "result.json" in broken.sentence
    assert broken.trace == ""
    assert isinstance(source, Complete)
    assert isinstance(other, Complete)
    assert [error.error for error in other.result.domains] == [error.error for error in alone.domains]  # no randomness
    assert other.result.record == {**alone.record, "seed": 1}
    progress = [one for one in news if isinstance(one, Running) and one.number == 2]
    assert (progress[0].done, progress[0].score, progress[-1].done) == (0, None, specs[2].batches)
    assert progress[-1].score == pytest.approx(other.result.mean_score)
    assert capfd.readouterr() == ("", "")
    assert multiprocessing.active_children() == []


def kill_worker() -> None:
    (worker,) = multiprocessing.active_children()
    assert worker.pid is not None
    os.kill(worker.pid, signal.SIGKILL)


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no SIGKILL")
def test_a_killed_process_fails_its_run_and_the_others_continue(values: dict[str, Any], tmp_path: Path) -> None:
    runs = [{"images": 60, "batch_size": 1}, {}]
    _, long, short, _ = expand(Grid({**values, "seeds": 0}, runs))
    killed: list[News] = []

    def notify(one: News) -> None:
        if not killed:
            killed.append(one)
            kill_worker()

    first, second = bench([long, short], tmp_path, engine=Local(1), notify=notify)
    assert isinstance(first, Failed)
    assert first.sentence.startswith("its process was killed by signal 9: look at the memory that is left")
    assert isinstance(second, Complete)
    (again,) = bench([long], tmp_path, engine=Local(1))
    assert isinstance(again, Complete)


def test_an_interrupt_ends_the_processes_at_once(values: dict[str, Any], tmp_path: Path) -> None:
    def interrupt(news: News) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        bench(expand(Grid(values)), tmp_path, engine=Local(1), notify=interrupt)
    assert multiprocessing.active_children() == []


def test_an_unexpected_error_comes_with_its_traceback(values: dict[str, Any], tmp_path: Path) -> None:
    from testdg.studies.engine import run_one

    spec: RunSpec = msgspec.structs.replace(expand(Grid(values))[1], batch_size="many")
    outcome = run_one(7, spec, tmp_path, lambda news: None)
    assert isinstance(outcome, Failed)
    assert (outcome.number, outcome.sentence.partition(":")[0]) == (7, "TypeError")
    assert "Traceback" in outcome.trace


def test_the_adapter_of_an_earlier_run_is_freed(
    values: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from testdg.methods.testdg import TestDG
    from testdg.studies.engine import run_one

    build = TestDG.build

    def looped(adapter: TestDG) -> None:
        build(adapter)
        adapter.itself = [adapter]  # type: ignore[assignment]  # as a recorded step refers to what it is a part of

    monkeypatch.setattr(TestDG, "build", looped)
    _, spec = expand(Grid({**values, "method": "testdg", "seeds": 0}))
    gc.disable()
    try:
        assert isinstance(run_one(0, spec, tmp_path, lambda news: None), Complete)
        assert not any(type(thing) is TestDG for thing in gc.get_objects())
    finally:
        gc.enable()


def test_models_are_checked_before_anything_runs(values: dict[str, Any], tmp_path: Path) -> None:
    prepare(expand(Grid(values)))
    (tmp_path / "empty").mkdir()
    runs = [{}, {"model": str(tmp_path / "empty")}, {"model": str(tmp_path / "none")}]
    with refused("no-weights", 2, tmp_path / "empty", tmp_path / "none"):
        prepare(expand(Grid({**values, "seeds": 0}, runs)))


def test_jobs_share_the_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(16)), raising=False)
    monkeypatch.setattr("torch.get_num_threads", lambda: 8)
    assert [threads_per_job(jobs) for jobs in (1, 2, 3, 5, 16, 40)] == [8, 8, 5, 3, 1, 1]
    with refused("wrong-jobs", 0):
        Local(0)


def test_a_run_in_another_process_is_waited_for(values: dict[str, Any], tmp_path: Path) -> None:
    specs = expand(Grid(values))
    _, first, _ = bench(specs, tmp_path, engine=Local(1))
    assert isinstance(first, Complete)
    (first.result.folder / "result.json").unlink()
    news: list[News] = []
    release = threading.Event()

    def hold() -> None:
        with locked(first.result.folder / ".lock", "busy"):
            held.set()
            release.wait(60)

    def notify(one: News) -> None:
        news.append(one)
        if isinstance(one, Complete) and one.number == 2:
            release.set()  # the other runs need not wait

    held = threading.Event()
    thread = threading.Thread(target=hold)
    thread.start()
    held.wait()
    ends = bench(specs, tmp_path, engine=Local(1), notify=notify)
    thread.join()
    assert all(isinstance(end, Complete) for end in ends)
    assert [one.number for one in news if isinstance(one, Complete)] == [0, 2, 1]


@pytest.mark.skipif(sys.platform == "win32", reason="Windows ends processes without asking")
def test_an_interrupt_saves_the_state_of_every_run(values: dict[str, Any], tmp_path: Path) -> None:
    _, spec = expand(Grid({**values, "seeds": 0, "images": 60, "batch_size": 1}))

    def interrupt(news: News) -> None:
        if isinstance(news, Running) and news.done:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        bench([spec], tmp_path, engine=Local(1), notify=interrupt)
    assert multiprocessing.active_children() == []
    assert list(tmp_path.glob("digits-c-tent-*/state/state.json"))
    assert not list(tmp_path.glob("*/result.json"))
