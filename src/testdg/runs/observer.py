"""What a run tells while it goes, and trackers, which keep its numbers for another program to draw.

The library itself prints nothing.
"""

import shutil
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from testdg.errors import UserError, unknown
from testdg.runs.events import Event
from testdg.runs.record import Record
from testdg.runs.result import Result
from testdg.runs.scores import find_score

TRACKERS = ("tensorboard",)
WINDOW = 20  # batches
Sums = tuple[Any, int]  # the sums of a batch's score, and its images


class Observer:
    """Hears of a run's progress. Every method does nothing: override what you want to show."""

    def training(self, step: int, steps: int) -> None:
        """A source model is being trained."""

    def opened(self, folder: Path) -> None:
        """A run is about to look what its folder holds; the folder need not exist."""

    def started(self, method: str, record: Record, batches: int, events: list[Event]) -> None:
        """A run of some batches begins; `events` tell of those that are behind it already."""

    def progress(self, events: list[Event]) -> None:
        """Some more batches were scored."""

    def finished(self, result: Result) -> None:
        """The run is complete."""


def check_tracker(name: str | None) -> None:
    """Refuse a tracker that does not exist or is not installed."""
    if name is None:
        return
    if name not in TRACKERS:
        raise unknown("tracker", name, TRACKERS)
    try:
        import torch.utils.tensorboard  # noqa: F401
    except ImportError as error:
        raise UserError("tensorboard is not installed: pip install 'testdg[track]'") from error


@contextmanager
def tracked(observer: Observer, name: str | None) -> Iterator[Observer]:
    """Give an observer that tells another one everything, and a tracker, if one is named."""
    if name is None:
        yield observer
        return
    check_tracker(name)
    with closing(TensorBoard()) as tracker:
        yield Several([tracker, observer])


class Several(Observer):
    """Passes on what it hears, whatever it is."""

    def __init__(self, observers: Sequence[Observer]) -> None:
        self.observers = observers
        for name in vars(Observer):
            if not name.startswith("_"):
                setattr(self, name, partial(self._tell_all, name))

    def _tell_all(self, name: str, *news: Any) -> None:
        for observer in self.observers:
            getattr(observer, name)(*news)


class TensorBoard(Observer):
    """Writes the score of every batch and domain, and the changes that were noticed, into the run's folder.

    A run that goes on is written anew from its first batch, so that no batch is there twice.
    """

    def __init__(self) -> None:
        self.writer: Any = None

    def opened(self, folder: Path) -> None:
        """Remember where to write."""
        self.close()
        self.place = folder / "tensorboard"

    def started(self, method: str, record: Record, batches: int, events: list[Event]) -> None:
        """Begin a file with what is behind the run."""
        from torch.utils.tensorboard import SummaryWriter

        shutil.rmtree(self.place, ignore_errors=True)
        self.writer = SummaryWriter(str(self.place))
        self.score, self.changes = find_score(record.task), 0
        self.recent: deque[Sums] = deque(maxlen=WINDOW)
        self.progress(events)

    def progress(self, events: list[Event]) -> None:
        """Write some batches."""
        key = self.score.metric.key
        for event in events:
            number = event["batch"]
            self.recent.append((sum(self.score.unpack(part) for part in event["parts"]), event["images"]))
            self._write(f"{key}/batch", self._score_of([self.recent[-1]]), number)
            self._write(f"{key}/window", self._score_of(self.recent), number)
            if (change := event["diagnostics"].get("change")) is not None:
                self.changes += bool(change)
                self._write("changes", self.changes, number)
        self.writer.flush()

    def finished(self, result: Result) -> None:
        """Write the score of every visit to a domain, and end the file."""
        for number, visit in enumerate([*result.domains, *(result.held_out or [])]):
            self._write(f"domains/{visit.name}", visit.scores.get(result.metric.key), number)
        self.close()

    def close(self) -> None:
        """End the file, if there is one."""
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
