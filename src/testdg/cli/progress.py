"""How a run shows while it goes: a live table on a terminal, plain lines elsewhere."""

from __future__ import annotations

from types import TracebackType
from typing import Any, Self

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from testdg.evaluation import Observer, Protocol
from testdg.report.table import make_rows, rich_table


class Display(Observer):
    """Collects the errors of each method while its events come in."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.titles: dict[str, str] = {}
        self.counts: dict[str, dict[str, list[int]]] = {}
        self.method = ""
        self.protocol: Protocol | None = None

    def expect(self, titles: dict[str, str]) -> None:
        """Name the methods to come, in the order of the columns."""
        self.titles = titles

    def started(self, method: str, protocol: Protocol, batches: int, events: list[dict[str, Any]]) -> None:
        """Begin a column."""
        self.method, self.protocol = method, protocol
        self.counts[method] = {}
        self.progress(events)

    def progress(self, events: list[dict[str, Any]]) -> None:
        """Add up errors."""
        for event in events:
            count = self.counts[self.method].setdefault(event["domain"], [0, 0])
            count[0] += event["errors"]
            count[1] += event["images"]

    def errors(self, method: str) -> dict[str, float]:
        """Error of each domain so far, in percent."""
        return {name: 100 * wrong / images for name, (wrong, images) in self.counts.get(method, {}).items()}

    def __enter__(self) -> Self:
        """Begin to show."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop showing."""


class PlainDisplay(Display):
    """One line when a method starts, one per finished domain."""

    def training(self, step: int, steps: int) -> None:
        """Tell a quarter at a time."""
        if step % max(1, steps // 4) == 0:
            self.console.print(f"training the source model: {100 * step // steps} %")

    def started(self, method: str, protocol: Protocol, batches: int, events: list[dict[str, Any]]) -> None:
        """Tell what begins."""
        self.told: set[str] = set()
        self.sizes = _sizes(protocol)
        done = f", {len(events)} done already" if events else ""
        self.console.print(f"{self.titles.get(method, method)}: {batches} batches{done}")
        super().started(method, protocol, batches, events)

    def progress(self, events: list[dict[str, Any]]) -> None:
        """Tell each domain once it is complete."""
        super().progress(events)
        for name, (wrong, images) in self.counts[self.method].items():
            if name not in self.told and images == self.sizes[name]:
                self.told.add(name)
                self.console.print(f"  {name:<20}{100 * wrong / images:5.1f} %")


class LiveDisplay(Display):
    """A table that fills while the stream goes by, with a bar underneath."""

    def __init__(self, console: Console) -> None:
        super().__init__(console)
        self.bar = Progress(TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn(), console=console)
        self.task: TaskID | None = None
        self.live = Live(console=console, refresh_per_second=4, transient=True, get_renderable=self._render)

    def training(self, step: int, steps: int) -> None:
        """Move the bar."""
        if step == 1 or self.task is None:
            self._new_task("training the source model", steps)
        assert self.task is not None
        self.bar.update(self.task, completed=step)

    def started(self, method: str, protocol: Protocol, batches: int, events: list[dict[str, Any]]) -> None:
        """Begin a column and a bar."""
        self._new_task(self.titles.get(method, method), batches)
        super().started(method, protocol, batches, events)

    def progress(self, events: list[dict[str, Any]]) -> None:
        """Fill the table and move the bar."""
        super().progress(events)
        if self.task is not None:
            self.bar.advance(self.task, len(events))

    def _new_task(self, description: str, total: int) -> None:
        if self.task is not None:
            self.bar.remove_task(self.task)
        self.task = self.bar.add_task(description, total=total)

    def _render(self) -> Group:
        if self.protocol is None:
            return Group(self.bar)
        columns = [self.errors(name) for name in self.titles]
        rows = make_rows(self.protocol.domains, self.protocol.held_out, columns)
        return Group(rich_table(list(self.titles.values()), rows), self.bar)

    def __enter__(self) -> Self:
        """Begin to draw."""
        self.live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Clear the drawing."""
        self.live.stop()


def _sizes(protocol: Protocol) -> dict[str, int]:
    names, images = [*protocol.domains, *protocol.held_out], protocol.images_per_domain
    return dict(zip(names, [images] * len(names) if isinstance(images, int) else images, strict=True))


def make_display(console: Console) -> Display:
    """Choose how to show."""
    return LiveDisplay(console) if console.is_terminal else PlainDisplay(console)
