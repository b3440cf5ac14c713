"""What a run tells while it goes; the library itself prints nothing."""

from pathlib import Path
from typing import Any

from testdg.evaluation.record import Record
from testdg.evaluation.result import Result


class Observer:
    """Hears of a run's progress. Every method does nothing: override what you want to show."""

    def training(self, step: int, steps: int) -> None:
        """A source model is being trained."""

    def opened(self, folder: Path) -> None:
        """A run is about to look what its folder holds; the folder need not exist."""

    def started(self, method: str, record: Record, batches: int, events: list[dict[str, Any]]) -> None:
        """A run of some batches begins; `events` tell of those that are behind it already."""

    def progress(self, events: list[dict[str, Any]]) -> None:
        """Some more batches were scored."""

    def finished(self, result: Result) -> None:
        """The run is complete."""
