"""What commands draw while they work: a bar or a table on a terminal, lines elsewhere; other libraries stay quiet."""

import os
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Self

from rich.console import Console
from rich.live import Live
from rich.progress import BarColumn, Progress, ProgressColumn, TextColumn, TimeRemainingColumn

from testdg.errors import visible

STATUS_EVERY = 60.0  # seconds between two lines about what runs, where there is no terminal


class Drawn:
    """What may draw on a terminal; use it as a context."""

    drawing: Live | Progress | None = None

    def __enter__(self) -> Self:
        """Begin to draw."""
        if self.drawing is not None:
            self.drawing.start()
        return self

    def __exit__(self, *error: object) -> None:
        """Clear the drawing."""
        if self.drawing is not None:
            self.drawing.stop()


class Screen(Drawn):
    """Lines, and on a terminal a bar below them."""

    def __init__(self, console: Console, *columns: ProgressColumn, redirect_stdout: bool = True) -> None:
        self.console = console
        self.shown = time.monotonic()
        hidden = not console.is_terminal
        self.drawing = self.progress = Progress(
            *columns, console=console, transient=True, redirect_stdout=redirect_stdout, disable=hidden
        )

    @property
    def is_silent(self) -> bool:
        """Whether there is no bar, and nothing was told for long."""
        return not self.console.is_terminal and time.monotonic() - self.shown >= STATUS_EVERY

    def print(self, line: str) -> None:
        """Tell something."""
        self.shown = time.monotonic()
        self.console.print(visible(line), markup=False)


class Bar(Screen):
    """Shows how far some work is: a bar with the time left on a terminal, a line at every tenth elsewhere."""

    def __init__(self, console: Console) -> None:
        columns = [TextColumn("{task.description}"), BarColumn(), TextColumn("{task.percentage:3.0f} %")]
        super().__init__(console, *columns, TimeRemainingColumn())
        self.task, self.tenths = self.progress.add_task("", total=None), 0

    def update(self, description: str, done: int, total: int) -> None:
        """Show that so much of the work is done."""
        self.progress.update(self.task, description=description, completed=done, total=total)
        if not self.console.is_terminal and 10 * done // total > self.tenths:
            self.tenths = 10 * done // total
            self.print(f"{10 * self.tenths:3} %  {description}")


def quieten(models: Iterable[str | None]) -> None:
    """Keep other libraries' chatter away; only the download of a model keeps its bar."""
    for library in ("TRANSFORMERS", "HF_HUB"):
        os.environ.setdefault(f"{library}_VERBOSITY", "error")
    if all(model is None or Path(model).exists() for model in models):
        os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
