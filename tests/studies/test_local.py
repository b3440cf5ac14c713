"""Cells run in real processes; the machine's clock decides nothing here."""

import gc
import multiprocessing
import os
import signal
import sys
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from testdg.errors import UserError
from testdg.files import locked
from testdg.runs import run
from testdg.studies import Complete, Failed, Grid, Local, News, Running, RunSpec, bench, expand, prepare
from testdg.studies.local import threads_per_job

DOMAINS = ["fog", "contrast"]


@pytest.fixture
def values(model: Path) -> dict[str, Any]:
    return {"method": "tent", "model": str(model), "device": "cpu", "images": 6, "domains": DOMAINS, "seeds": [0, 1]}


def test_cells_run_as_they_do_alone_and_a_failing_one_stops_nobody(
    values: dict[str, Any], model: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    cells = expand(Grid(values))
    alone = run("digits-c", "tent", model=model, device="cpu", images=6, domains=DOMAINS, out=tmp_path)
    (alone.folder / "result.json").write_text("{")
    heard: list[News] = []
    source, broken, other = bench(cells, tmp_path, engine=Local(2), tell=heard.append)
    assert isinstance(broken, Failed)
    assert "result.json is damaged" in broken.sentence
    assert broken.trace == ""
    assert isinstance(source, Complete)
    assert isinstance(other, Complete)
    assert [error.error for error in other.result.domains] == [error.error for error in alone.domains]  # no randomness
    assert other.result.record == {**alone.record, "seed": 1}
    progress = [news for news in heard if isinstance(news, Running) and news.number == 2]
    assert (progress[0].done, progress[0].score, progress[-1].done) == (0, None, cells[2].batches)
    assert progress[-1].score == pytest.approx(other.result.mean_score)
    assert capfd.readouterr() == ("", "")
    assert multiprocessing.active_children() == []


def kill_worker() -> None:
    (worker,) = multiprocessing.active_children()
    assert worker.pid is not None
    os.kill(worker.pid, signal.SIGKILL)


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no SIGKILL")
def test_a_killed_process_fails_its_cell_and_the_rest_goes_on(values: dict[str, Any], tmp_path: Path) -> None:
    runs = [{"images": 60, "batch_size": 1}, {}]
    _, long, short, _ = expand(Grid({**values, "seeds": 0}, runs))
    killed: list[News] = []

    def tell(news: News) -> None:
        if not killed:
            killed.append(news)
            kill_worker()

    first, second = bench([long, short], tmp_path, engine=Local(1), tell=tell)
    assert isinstance(first, Failed)
    assert first.sentence.startswith("its process was killed by signal 9: look at the memory that is left")
    assert isinstance(second, Complete)
    (again,) = bench([long], tmp_path, engine=Local(1))
    assert isinstance(again, Complete)


def test_an_interrupt_ends_the_processes_at_once(values: dict[str, Any], tmp_path: Path) -> None:
    def interrupt(news: News) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        bench(expand(Grid(values)), tmp_path, engine=Local(1), tell=interrupt)
    assert multiprocessing.active_children() == []


def test_a_mistake_of_ours_comes_with_its_traceback(values: dict[str, Any], tmp_path: Path) -> None:
    from testdg.studies.engine import run_one

    cell: RunSpec = replace(expand(Grid(values))[1], batch_size="many")  # type: ignore[arg-type]
    outcome = run_one(7, cell, tmp_path, lambda news: None)
    assert isinstance(outcome, Failed)
    assert (outcome.number, outcome.sentence.partition(":")[0]) == (7, "TypeError")
    assert "Traceback" in outcome.trace


def test_a_process_holds_no_adapter_of_an_earlier_cell(
    values: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from testdg.methods.testdg import TestDG
    from testdg.studies.engine import run_one

    build = TestDG.build

    def looped(adapter: TestDG) -> None:
        build(adapter)
        adapter.itself = [adapter]  # type: ignore[assignment]  # as a recorded step refers to what it is a part of

    monkeypatch.setattr(TestDG, "build", looped)
    _, cell = expand(Grid({**values, "method": "testdg", "seeds": 0}))
    gc.disable()
    try:
        assert isinstance(run_one(0, cell, tmp_path, lambda news: None), Complete)
        assert not any(type(thing) is TestDG for thing in gc.get_objects())
    finally:
        gc.enable()


def test_models_are_looked_at_before_anything_runs(values: dict[str, Any], tmp_path: Path) -> None:
    prepare(expand(Grid(values)))
    (tmp_path / "empty").mkdir()
    runs = [{}, {"model": str(tmp_path / "empty")}, {"model": str(tmp_path / "none")}]
    with pytest.raises(UserError, match=r"the grid has 2 mistakes: \(1\) .*empty holds no weights.*; \(2\) .*none"):
        prepare(expand(Grid({**values, "seeds": 0}, runs)))


def test_jobs_share_the_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(16)), raising=False)
    monkeypatch.setattr("torch.get_num_threads", lambda: 8)
    assert [threads_per_job(jobs) for jobs in (1, 2, 3, 5, 16, 40)] == [8, 8, 5, 3, 1, 1]
    with pytest.raises(UserError, match="jobs must be at least 1; got 0"):
        Local(0)


def test_a_cell_that_another_process_is_at_is_waited_for(values: dict[str, Any], tmp_path: Path) -> None:
    cells = expand(Grid(values))
    _, first, _ = bench(cells, tmp_path, engine=Local(1))
    assert isinstance(first, Complete)
    (first.result.folder / "result.json").unlink()
    heard: list[News] = []
    release = threading.Event()

    def hold() -> None:
        with locked(first.result.folder / ".lock", "busy"):
            held.set()
            release.wait(60)

    def tell(news: News) -> None:
        heard.append(news)
        if isinstance(news, Complete) and news.number == 2:
            release.set()  # the others are not held up

    held = threading.Event()
    thread = threading.Thread(target=hold)
    thread.start()
    held.wait()
    ends = bench(cells, tmp_path, engine=Local(1), tell=tell)
    thread.join()
    assert all(isinstance(end, Complete) for end in ends)
    assert [news.number for news in heard if isinstance(news, Complete)] == [0, 2, 1]


@pytest.mark.skipif(sys.platform == "win32", reason="Windows ends processes without asking")
def test_an_interrupt_saves_the_state_of_every_cell(values: dict[str, Any], tmp_path: Path) -> None:
    _, cell = expand(Grid({**values, "seeds": 0, "images": 60, "batch_size": 1}))

    def interrupt(news: News) -> None:
        if isinstance(news, Running) and news.done:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        bench([cell], tmp_path, engine=Local(1), tell=interrupt)
    assert multiprocessing.active_children() == []
    assert list(tmp_path.glob("digits-c-tent-*/state/state.json"))
    assert not list(tmp_path.glob("*/result.json"))
