"""A bar with the time left on a terminal; a line at every tenth elsewhere."""

from typing import Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn


class Bar:
    """Shows how far some work is; use it as a context."""

    def __init__(self, console: Console) -> None:
        self.console, self.tenths = console, 0
        columns = [TextColumn("{task.description}"), BarColumn(), TextColumn("{task.percentage:3.0f} %")]
        self.progress = Progress(*columns, TimeRemainingColumn(), console=console, transient=True)
        self.task = self.progress.add_task("", total=None)

    def update(self, description: str, done: int, total: int) -> None:
        """Show that so much of the work is done."""
        self.progress.update(self.task, description=description, completed=done, total=total)
        if not self.console.is_terminal and 10 * done // total > self.tenths:
            self.tenths = 10 * done // total
            self.console.print(f"{10 * self.tenths:3} %  {description}", markup=False)

    def __enter__(self) -> Self:
        """Begin to draw."""
        if self.console.is_terminal:
            self.progress.start()
        return self

    def __exit__(self, *error: object) -> None:
        """Clear the drawing."""
        if self.console.is_terminal:
            self.progress.stop()
