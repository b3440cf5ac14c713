"""How a run shows while it goes: a live table on a terminal, plain lines elsewhere."""

from collections.abc import Sequence
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from testdg.cli.screen import Drawn
from testdg.report import rich_table, visit_table
from testdg.runs import Observer, Record
from testdg.runs.protocol import Visit
from testdg.runs.record import OWN_ORDERS
from testdg.runs.result import Tally
from testdg.runs.scores import find_score


class Display(Observer, Drawn):
    """Collects the scores of each method while its events come in."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.titles: dict[str, str] = {}
        self.tallies: dict[str, Tally] = {}
        self.method = ""

    def expect(self, titles: dict[str, str]) -> None:
        """Name the methods to come, in the order of the columns."""
        self.titles, self.tallies = titles, {}

    def started(self, method: str, record: Record, batches: int, events: list[dict[str, Any]]) -> None:
        """Begin a column."""
        self.method = method
        self.tallies[method] = Tally(find_score(record.task), record.visits())
        self.progress(events)

    def progress(self, events: list[dict[str, Any]]) -> None:
        """Add up scores."""
        self.tallies[self.method].add(events)

    def title(self, method: str, record: Record) -> str:
        """The name of a method, with the order where there are several."""
        title = self.titles.get(method, method)
        return title if record.order in OWN_ORDERS else f"{title}, {record.order}"

    def scores(self, method: str) -> dict[int, float]:
        """The number that tables show of each visit so far."""
        tally = self.tallies.get(method)
        found = {} if tally is None else {number: tally.score_of(number) for number in tally.images}
        return {number: score for number, score in found.items() if score is not None}


class PlainDisplay(Display):
    """One line when a method starts, one per finished domain."""

    def training(self, step: int, steps: int) -> None:
        """Tell a quarter at a time."""
        if step % max(1, steps // 4) == 0:
            self.console.print(f"training the source model: {100 * step // steps} %")

    def started(self, method: str, record: Record, batches: int, events: list[dict[str, Any]]) -> None:
        """Tell what begins."""
        self.ended: set[int] = set()
        names, images = [*record.domains, *record.held_out], record.images_per_domain
        self.sizes = dict(zip(names, [images] * len(names) if isinstance(images, int) else images, strict=True))
        done = f", {len(events)} done already" if events else ""
        self.console.print(f"{self.title(method, record)}: {batches} batches{done}")
        super().started(method, record, batches, events)

    def progress(self, events: list[dict[str, Any]]) -> None:
        """Tell each visit once it is complete."""
        super().progress(events)
        tally = self.tallies[self.method]
        for number in sorted({part["segment"] for event in events for part in event["parts"]} - self.ended):
            if tally.images[number] == self.sizes[tally.visits[number].name]:
                self.ended.add(number)
                score = tally.score_of(number)
                shown = "-" if score is None else tally.score.metric.show(score)
                self.console.print(f"  {_label(tally.visits, number):<20}{shown:>7}")


class LiveDisplay(Display):
    """A table that fills while the stream goes by, with a bar underneath."""

    def __init__(self, console: Console) -> None:
        super().__init__(console)
        self.bar = Progress(TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn(), console=console)
        self.task = self.bar.add_task("", total=None, visible=False)
        self.drawing = Live(console=console, refresh_per_second=4, transient=True, get_renderable=self._render)

    def training(self, step: int, steps: int) -> None:
        """Move the bar."""
        self.bar.update(self.task, description="training the source model", completed=step, total=steps, visible=True)

    def started(self, method: str, record: Record, batches: int, events: list[dict[str, Any]]) -> None:
        """Begin a column and a bar."""
        self.bar.reset(self.task, description=self.title(method, record), total=batches, visible=True)
        super().started(method, record, batches, events)

    def progress(self, events: list[dict[str, Any]]) -> None:
        """Fill the table and move the bar."""
        super().progress(events)
        self.bar.advance(self.task, len(events))

    def _render(self) -> Group:
        if not self.tallies:
            return Group(self.bar)
        tally = next(iter(self.tallies.values()))
        columns = [self.scores(name) for name in self.titles]
        table = visit_table(list(self.titles.values()), tally.visits, columns, tally.score.metric)
        return Group(rich_table(table), self.bar)


def _label(visits: Sequence[Visit], number: int) -> str:
    """Name a visit, with severity and round where there are several."""
    visit = visits[number]
    severity = f", {visit.severity}" if len({v.severity for v in visits}) > 1 else ""
    return visit.name + severity + (f", round {visit.round}" if visits[-1].round > 1 else "")


def make_display(console: Console) -> Display:
    """Choose how to show."""
    return LiveDisplay(console) if console.is_terminal else PlainDisplay(console)
