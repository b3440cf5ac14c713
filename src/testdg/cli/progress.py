"""How a run shows while it goes: a live table on a terminal, plain lines elsewhere."""

from collections.abc import Sequence

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from testdg.cli.screen import Drawn
from testdg.report import rich_table, visit_table
from testdg.runs.events import Entry
from testdg.runs.observer import Observer, RunProgress
from testdg.runs.protocol import Visit
from testdg.runs.record import OWN_ORDERS


class Display(Observer, Drawn):
    """Shows the runs of several methods on one stream, with the scores of each."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.titles: dict[str, str] = {}
        self.runs: dict[str, RunProgress] = {}

    def expect(self, titles: dict[str, str]) -> None:
        """Name the methods to come, in the order of the columns."""
        self.titles, self.runs = titles, {}

    def started(self, run: RunProgress) -> None:
        self.runs[run.method] = run

    def title(self, run: RunProgress) -> str:
        """The name of a method, with the order where there are several."""
        title = self.titles.get(run.method, run.method)
        return title if run.record.order in OWN_ORDERS else f"{title}, {run.record.order}"


class PlainDisplay(Display):
    """One line when a method starts, one per finished domain."""

    def training(self, step: int, steps: int) -> None:
        if step % max(1, steps // 4) == 0:
            self.console.print(f"training the source model: {100 * step // steps} %")

    def started(self, run: RunProgress) -> None:
        super().started(run)
        self.ended: set[int] = set()
        done = f", {run.resumed} done already" if run.resumed else ""
        self.console.print(f"{self.title(run)}: {run.batches} batches{done}")
        self.advanced(run, run.earlier)

    def advanced(self, run: RunProgress, entries: Sequence[Entry]) -> None:
        """Print each visit once it is complete."""
        tally, names = run.tally, [*run.record.domains, *run.record.held_out]
        images = run.record.images_per_domain
        sizes = dict(zip(names, [images] * len(names) if isinstance(images, int) else images, strict=True))
        for number in sorted({part["segment"] for entry in entries for part in entry["parts"]} - self.ended):
            if tally.images[number] == sizes[tally.visits[number].name]:
                self.ended.add(number)
                score = tally.score_of(number)
                shown = "-" if score is None else tally.score.metric.show(score)
                self.console.print(f"  {_label(tally.visits, number):<20}{shown:>7}")


class LiveDisplay(Display):
    """A table that fills while the stream is processed, with a bar below."""

    def __init__(self, console: Console) -> None:
        super().__init__(console)
        self.bar = Progress(TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn(), console=console)
        self.task = self.bar.add_task("", total=None, visible=False)
        self.drawing = Live(console=console, refresh_per_second=4, transient=True, get_renderable=self._render)

    def training(self, step: int, steps: int) -> None:
        self.bar.update(self.task, description="training the source model", completed=step, total=steps, visible=True)

    def started(self, run: RunProgress) -> None:
        super().started(run)
        self.bar.reset(self.task, description=self.title(run), total=run.batches, visible=True)
        self.bar.advance(self.task, run.done)

    def advanced(self, run: RunProgress, entries: Sequence[Entry]) -> None:
        self.bar.advance(self.task, len(entries))

    def _render(self) -> Group:
        if not self.runs:
            return Group(self.bar)
        tally = next(iter(self.runs.values())).tally
        columns = [self._scores(name) for name in self.titles]
        table = visit_table(list(self.titles.values()), tally.visits, columns, tally.score.metric)
        return Group(rich_table(table), self.bar)

    def _scores(self, method: str) -> dict[int, float]:
        """The score of each visit so far."""
        if (run := self.runs.get(method)) is None:
            return {}
        found = {number: run.tally.score_of(number) for number in run.tally.images}
        return {number: score for number, score in found.items() if score is not None}


def _label(visits: Sequence[Visit], number: int) -> str:
    """Name a visit, with severity and round where there are several."""
    visit = visits[number]
    severity = f", {visit.severity}" if len({v.severity for v in visits}) > 1 else ""
    return visit.name + severity + (f", round {visit.round}" if visits[-1].round > 1 else "")


def make_display(console: Console) -> Display:
    """Choose how to show."""
    return LiveDisplay(console) if console.is_terminal else PlainDisplay(console)
