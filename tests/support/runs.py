"""Small runs, and observers that disturb them."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from testdg.models import VisionModel
from testdg.runs import Observer, Result, run
from testdg.runs.events import Entry
from testdg.runs.observer import RunProgress

SMALL: dict[str, Any] = {"images": 10, "domains": ["fog", "contrast"], "batch_size": 4, "device": "cpu"}


def small_run(model: VisionModel, out: Path, method: str = "tent", **more: Any) -> Result:
    """A run of six batches."""
    return run("digits-c", method, model=model, out=out, **{**SMALL, **more})


def without_seconds(result: Result) -> dict[str, Any]:
    return {**result.to_dict(), "seconds": 0}


class Disturbed(Observer):
    """Calls a function with the run's folder, once, after some batches were scored."""

    def __init__(self, function: Callable[[Path], object], batches: int = 1) -> None:
        self.function, self.batches, self.folder, self.called = function, batches, Path(), False

    def opened(self, folder: Path) -> None:
        self.folder = folder

    def advanced(self, run: RunProgress, entries: Sequence[Entry]) -> None:
        if run.done >= self.batches and not self.called:
            self.called = True
            self.function(self.folder)


def interrupt(_: object) -> None:
    raise KeyboardInterrupt
