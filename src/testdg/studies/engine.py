"""Engines compute many runs somewhere and report news about them; `bench` is the loop around an engine."""

import gc
import statistics
import time
import traceback
from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol, Self, TypeVar

import torch

from testdg.errors import ErrorCollector, UserError
from testdg.files import Busy
from testdg.methods import find_method
from testdg.models.loading import find_device
from testdg.runs.events import Entry
from testdg.runs.observer import Observer, Observers, RunProgress, tracked
from testdg.runs.result import Result
from testdg.runs.run import run_session
from testdg.runs.session import free_cache, open_model, open_run
from testdg.spec import RunSpec
from testdg.studies.storage import Download, Out, find_out

T = TypeVar("T")


@dataclass(frozen=True)
class Running:
    """Progress of a run: batches done, and the mean score of its visits so far, whose title is `metric`."""

    number: int
    done: int
    score: float | None
    domain: str
    metric: str = "error, %"


@dataclass(frozen=True)
class Complete:
    """A run is complete."""

    number: int
    result: Result


@dataclass(frozen=True)
class Failed:
    """A run has no result: the reason in a sentence, and a traceback of an error in this program."""

    number: int
    sentence: str
    trace: str = ""
    busy: bool = False
    """Whether another process has locked the run, so that a later attempt may succeed."""

    @classmethod
    def of(cls, number: int, error: Exception) -> Self:
        """The failure of an exception that is being handled."""
        if isinstance(error, UserError):
            return cls(number, str(error), busy=isinstance(error, Busy))
        return cls(number, f"{type(error).__name__}: {error}", traceback.format_exc())


News = Running | Complete | Failed


class Engine(Protocol):
    """Computes runs. `number` of its news is the place of a run in the list; every run ends as Complete or Failed."""

    @property
    def jobs(self) -> int:
        """Number of runs at the same time."""

    def run(self, specs: Sequence[RunSpec], out: Out) -> Generator[News, None, None]:
        """Compute all runs, each in its folder under `out`; closing the generator stops them."""


def prepare(specs: Sequence[RunSpec], observer: Observer | None = None, *, devices: bool = True) -> None:
    """Check devices, and load, train or download every source model once on this machine, before anything runs.

    All mistakes are reported together. Without `devices`, those of this machine are not checked.
    """
    errors = ErrorCollector()
    for device in dict.fromkeys(spec.device for spec in specs if devices):
        errors.attempt("", find_device, device)
    for setup in dict.fromkeys(spec.setup for spec in specs):
        model = errors.attempt("", open_model, setup, "cpu", observer)
        for method in dict.fromkeys(spec.method for spec in specs if model and spec.setup == setup):
            if model and (reason := find_method(method).refuses(model)):
                errors.add(UserError(f"{method} cannot adapt {model.name}: {reason}", code="wrong-model"))
    free_cache()
    errors.raise_any("the grid")


def bench(
    specs: Sequence[RunSpec],
    out: str | Path = "runs",
    *,
    engine: Engine | None = None,
    notify: Callable[[News], object] | None = None,
) -> list[Complete | Failed]:
    """Compute runs, each in its own run folder under `out`, and return how each ended, in their order.

    A run that was stopped resumes, and a complete one is read back. `notify` is called with all news. `out` may be a
    URL of fsspec, where complete runs are stored; the folders of results are then local copies of their numbers.
    """
    from testdg.studies.local import Local

    ends: dict[int, Complete | Failed] = {}
    place = find_out(out)
    with closing((engine or Local()).run(specs, place)) as news:
        for one in news:
            if not isinstance(place, Path) and isinstance(one, Complete):
                try:
                    one = Complete(one.number, replace(one.result, folder=place.copy(one.result.folder.name)))
                except UserError as error:
                    one = Failed(one.number, str(error))
            if notify is not None:
                notify(one)
            if not isinstance(one, Running):
                ends[one.number] = one
    return [ends[number] for number in range(len(specs))]


def run_one(
    number: int, spec: RunSpec, out: Out, notify: Callable[[Running], None], patience: float = 0.0
) -> Complete | Failed:
    """Compute one run in this process; errors are returned as `Failed`, never raised.

    `patience` is how many seconds to wait for a folder that another process, perhaps a dying one, has locked.
    """
    try:
        return Complete(number, retry_while_busy(lambda: _run(spec, out, _RunReporter(number, notify)), patience))
    except Exception as error:
        return Failed.of(number, error)
    finally:
        gc.collect()  # the adapter refers to itself, and recorded CUDA graphs hold gigabytes
        if torch.cuda.is_available():
            torch.cuda.empty_cache()  # for the other processes on the same GPU


def retry_while_busy(work: Callable[[], T], patience: float) -> T:
    """Retry for some seconds while another process, perhaps a dying one, has locked the same folder."""
    end = time.monotonic() + patience
    while True:
        try:
            return work()
        except Busy:
            if time.monotonic() >= end:
                raise
            time.sleep(1.0)


def _run(spec: RunSpec, out: Out, observer: Observer) -> Result:
    """Compute a run in a folder; if `out` is a URL, the complete run is uploaded."""
    if not isinstance(out, Path):
        result = _run(spec, out.work, Observers([Download(out), observer]))
        out.upload(result.folder)
        return result
    with tracked(observer, spec.track) as everyone:
        return run_session(open_run(spec, everyone), out, everyone)


class _RunReporter(Observer):
    """Reports the progress of a run as news."""

    def __init__(self, number: int, notify: Callable[[Running], None]) -> None:
        self.number, self.notify = number, notify

    def started(self, run: RunProgress) -> None:
        self.advanced(run, run.earlier)

    def advanced(self, run: RunProgress, entries: Sequence[Entry]) -> None:
        tally = run.tally
        scores = [score for number in tally.images if (score := tally.score_of(number)) is not None]
        mean = statistics.fmean(scores) if scores else None
        domain = entries[-1]["domain"] if entries else ""
        self.notify(Running(self.number, run.done, mean, domain, tally.score.metric.title))
