"""What an engine is: it runs cells somewhere and tells what becomes of them."""

import gc
import statistics
import time
import traceback
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar

import torch

from testdg.data.benchmarks import Benchmark, load_benchmark
from testdg.errors import UserError
from testdg.files import Busy
from testdg.models import VisionModel
from testdg.models.device import find_device
from testdg.runs import Observer, Result, run, source_model
from testdg.runs.observer import Several, tracked
from testdg.runs.result import Tally
from testdg.runs.scores import find_score
from testdg.studies.grid import Cell, Setup
from testdg.studies.storage import Fetching, Out

T = TypeVar("T")


@dataclass(frozen=True)
class Running:
    """A cell is on its way: batches behind it, and the mean score of its visits so far, of which `metric` says what."""

    number: int
    done: int
    score: float | None
    domain: str
    metric: str = "error, %"


@dataclass(frozen=True)
class Complete:
    """A cell has its result."""

    number: int
    result: Result


@dataclass(frozen=True)
class Failed:
    """A cell has no result: why, in a sentence; with a traceback where the mistake is ours."""

    number: int
    sentence: str
    trace: str = ""
    busy: bool = False
    """Whether another process is at the same run: it can be tried again later."""


News = Running | Complete | Failed


class Engine(Protocol):
    """Runs cells; `number` of its news is a cell's place in the list. Every cell ends as Complete or Failed."""

    @property
    def jobs(self) -> int:
        """Cells that run at the same time."""

    def run(self, cells: Sequence[Cell], out: Out) -> Generator[News, None, None]:
        """Run all cells, each into its folder under `out`; closing the generator stops what runs."""


def run_cell(
    number: int, cell: Cell, out: Out, tell: Callable[[Running], None], patience: float = 0.0
) -> Complete | Failed:
    """Run one cell in this process; whatever goes wrong is told, not raised.

    `patience` is how many seconds to wait for a folder that another process, perhaps a dying one, still holds.
    """
    try:
        return Complete(number, patiently(lambda: _run(cell, out, _Teller(number, tell)), patience))
    except UserError as error:
        return Failed(number, str(error), busy=isinstance(error, Busy))
    except Exception as error:
        return Failed(number, f"{type(error).__name__}: {error}", traceback.format_exc())
    finally:
        gc.collect()  # the adapter refers to itself, and recorded CUDA graphs hold gigabytes
        if torch.cuda.is_available():
            torch.cuda.empty_cache()  # for the other processes on the same GPU


def patiently(work: Callable[[], T], patience: float) -> T:
    """Try again, for so many seconds, while another process, perhaps a dying one, is at the same folder."""
    end = time.monotonic() + patience
    while True:
        try:
            return work()
        except Busy:
            if time.monotonic() >= end:
                raise
            time.sleep(1.0)


def _run(cell: Cell, out: Out, teller: Observer) -> Result:
    """Run a cell into a folder; where `out` is a URL, the complete run is sent there."""
    if not isinstance(out, Path):
        result = _run(cell, out.work, Several([Fetching(out), teller]))
        out.send(result.folder)
        return result
    with tracked(teller, cell.track) as observer:
        return run_here(cell, out, observer)


def run_here(cell: Cell, out: Path, observer: Observer) -> Result:
    """Run a cell in this process into a folder of this machine."""
    benchmark, model = load_setup(cell.setup, find_device(cell.device).type, observer)
    return run(
        benchmark,
        cell.method,
        model=model,
        settings=cell.fixed,
        preset=cell.preset,
        tuned=dict(cell.tuned),
        protocol=cell.protocol,
        batch_size=cell.batch_size,
        device=model.device.type,
        source=cell.source,
        guard=cell.guard,
        out=out,
        observer=observer,
    )


_loaded: dict[tuple[Setup, str], tuple[Benchmark, VisionModel]] = {}


def load_setup(setup: Setup, device: str, observer: Observer | None = None) -> tuple[Benchmark, VisionModel]:
    """The benchmark and the source model of a cell; the last ones are kept for the next cell."""
    if (setup, device) not in _loaded:
        forget_setup()
        benchmark = load_benchmark(setup.benchmark, setup.data, **dict(setup.options))
        prepared = setup.preprocessing
        model = source_model(benchmark, setup.model, device=device, observer=observer, preprocessing=prepared)
        _loaded[setup, device] = benchmark, model
    return _loaded[setup, device]


def forget_setup() -> None:
    """Give the memory of the last benchmark and model back."""
    _loaded.clear()


class _Teller(Observer):
    """Adds up the scores of a run and tells them."""

    def __init__(self, number: int, tell: Callable[[Running], None]) -> None:
        self.number, self.tell, self.done = number, tell, 0

    def started(self, method: str, record: Any, batches: int, events: list[dict[str, Any]]) -> None:
        """Tell what is behind the run already."""
        self.tally = Tally(find_score(record.task), record.visits())
        self.progress(events)

    def progress(self, events: list[dict[str, Any]]) -> None:
        """Tell the mean of the visits so far."""
        self.done += len(events)
        self.tally.add(events)
        found = [self.tally.score_of(number) for number in self.tally.images]
        scores = [score for score in found if score is not None]
        mean = statistics.fmean(scores) if scores else None
        domain = events[-1]["domain"] if events else ""
        self.tell(Running(self.number, self.done, mean, domain, self.tally.score.metric.title))
