"""Observers: callbacks of a run, and TensorBoard as one of them. The library itself prints nothing."""

import shutil
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from testdg.errors import UserError, unknown
from testdg.runs.events import Entry
from testdg.runs.protocol import Visit
from testdg.runs.result import Result, Tally
from testdg.runs.scores import find_score

TRACKERS = ("tensorboard",)
WINDOW = 20  # batches
Sums = tuple[Any, int]  # the sums of a batch's score, and its images


class RunProgress:
    """How far a run is: its batches, those that are done, and the scores so far."""

    def __init__(self, method: str, record: Mapping[str, Any], visits: Sequence[Visit], batches: int) -> None:
        self.method, self.record, self.batches = method, record, batches
        self.tally = Tally(find_score(record["task"]), visits)
        self.done, self.resumed = 0, 0
        self.started = False
        self.earlier: list[Entry] = []
        """Log entries from before the run was resumed."""

    def resume(self, entries: list[Entry]) -> None:
        """Begin after some batches."""
        self.started, self.resumed, self.earlier = True, len(entries), entries
        self.add(entries)

    def add(self, entries: Sequence[Entry]) -> None:
        self.done += len(entries)
        self.tally.add(entries)


class Observer:
    """Gets the progress of runs. Every method does nothing: override what you want to show."""

    def training(self, step: int, steps: int) -> None:
        """Called while a source model is trained."""

    def opened(self, folder: Path) -> None:
        """Called before a run folder is inspected; the folder need not exist."""

    def started(self, run: RunProgress) -> None:
        """Called when a run begins or resumes, or when a complete one was read."""

    def advanced(self, run: RunProgress, entries: Sequence[Entry]) -> None:
        """Called when some more batches were scored; `run` counts them already."""

    def finished(self, result: Result) -> None:
        """Called when a run is complete."""


def check_tracker(name: str | None) -> None:
    """Refuse a tracker that does not exist or is not installed."""
    if name is None:
        return
    if name not in TRACKERS:
        raise unknown("tracker", name, TRACKERS)
    try:
        import torch.utils.tensorboard  # noqa: F401
    except ImportError as error:
        raise UserError("tensorboard is not installed: pip install 'testdg[track]'", code="not-installed") from error


@contextmanager
def tracked(observer: Observer, name: str | None) -> Iterator[Observer]:
    """Yield an observer that passes everything on to another one, and to a tracker if one is named."""
    if name is None:
        yield observer
        return
    check_tracker(name)
    with closing(TensorBoard()) as tracker:
        yield Observers([tracker, observer])


class Observers(Observer):
    """Passes every call on to several observers."""

    def __init__(self, observers: Sequence[Observer]) -> None:
        for name in ("training", "opened", "started", "advanced", "finished"):
            setattr(self, name, partial(_call_all, [getattr(one, name) for one in observers]))


def _call_all(functions: Sequence[Callable[..., None]], *values: object) -> None:
    for function in functions:
        function(*values)


class TensorBoard(Observer):
    """Writes the score of every batch and domain, and detected changes, into the run's folder.

    A resumed run is written again from its first batch, so that no batch appears twice.
    """

    def __init__(self) -> None:
        self.writer: Any = None

    def opened(self, folder: Path) -> None:
        self.close()
        self.place = folder / "tensorboard"

    def started(self, run: RunProgress) -> None:
        from torch.utils.tensorboard import SummaryWriter

        shutil.rmtree(self.place, ignore_errors=True)
        self.writer = SummaryWriter(str(self.place))
        self.score, self.changes = run.tally.score, 0
        self.recent: deque[Sums] = deque(maxlen=WINDOW)
        self.advanced(run, run.earlier)

    def advanced(self, run: RunProgress, entries: Sequence[Entry]) -> None:
        key = self.score.metric.key
        for entry in entries:
            number = entry["batch"]
            self.recent.append((sum(map(self.score.unpack, entry["parts"])), entry["images"]))
            self._write(f"{key}/batch", self._score_of([self.recent[-1]]), number)
            self._write(f"{key}/window", self._score_of(self.recent), number)
            if (change := entry["diagnostics"].get("change")) is not None:
                self.changes += bool(change)
                self._write("changes", self.changes, number)
        self.writer.flush()

    def finished(self, result: Result) -> None:
        for number, visit in enumerate([*result.domains, *(result.held_out or [])]):
            self._write(f"domains/{visit.name}", visit.scores.get(result.metric.key), number)
        self.close()

    def close(self) -> None:
        if self.writer is not None:
            self.writer.close()
            self.writer = None

    def _score_of(self, batches: Iterable[Sums]) -> float | None:
        sums, images = (sum(column) for column in zip(*batches, strict=True))
        found: float | None = self.score.metrics(sums, images)[self.score.metric.key]
        return found

    def _write(self, tag: str, value: float | None, step: int) -> None:
        if value is not None:
            self.writer.add_scalar(tag, value, step)
