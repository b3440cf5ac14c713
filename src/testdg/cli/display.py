"""Progress on the screen: bars and tables on a terminal, lines elsewhere; other libraries print nothing."""

import os
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.markup import escape
from rich.progress import BarColumn, Progress, ProgressColumn, TaskID, TextColumn, TimeRemainingColumn

from testdg.errors import visible
from testdg.report import rich_table, visit_table
from testdg.runs.events import Entry
from testdg.runs.observer import Observer, RunProgress
from testdg.runs.record import OWN_ORDERS
from testdg.studies import Complete, Failed, News, Running, RunSpec


def quieten(models: Iterable[str | None]) -> None:
    """Silence other libraries; only the download of a model shows a bar."""
    for library in ("TRANSFORMERS", "HF_HUB"):
        os.environ.setdefault(f"{library}_VERBOSITY", "error")
    if all(model is None or Path(model).exists() for model in models):
        os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")


class Screen:
    """Lines that stay, and on a terminal a display below them: a bar, unless `render` returns something else.

    `render` is first called by this constructor.
    """

    interval = 60.0
    """Seconds between two status lines, where there is no terminal."""

    def __init__(self, console: Console, *columns: ProgressColumn, redirect_stdout: bool = True) -> None:
        self.console = console
        self.printed = time.monotonic()
        self.progress = Progress(*columns, console=console)
        self.live = Live(
            console=console,
            refresh_per_second=4,
            transient=True,
            redirect_stdout=redirect_stdout,
            get_renderable=self.render,
        )

    def render(self) -> RenderableType:
        return self.progress

    def __enter__(self) -> Self:
        if self.console.is_terminal:
            self.live.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.live.stop()

    @property
    def is_silent(self) -> bool:
        """Whether there is no terminal, and the last line is long ago."""
        return not self.console.is_terminal and time.monotonic() - self.printed >= self.interval

    def print(self, line: str) -> None:
        self.printed = time.monotonic()
        self.console.print(visible(line), markup=False)


class Bar(Screen, Observer):
    """Progress of one piece of work: a bar with the time left on a terminal, a line at every tenth elsewhere."""

    def __init__(self, console: Console) -> None:
        columns = [TextColumn("{task.description}"), BarColumn(), TextColumn("{task.percentage:3.0f} %")]
        super().__init__(console, *columns, TimeRemainingColumn())
        self.task, self.tenths = self.progress.add_task("", total=None), 0

    def update(self, description: str, done: int, total: int) -> None:
        self.progress.update(self.task, description=description, completed=done, total=total)
        if not self.console.is_terminal and 10 * done // total > self.tenths:
            self.tenths = 10 * done // total
            self.print(f"{10 * self.tenths:3} %  {description}")

    def training(self, step: int, steps: int) -> None:
        self.update("training the source model", step, steps)


class RunDisplay(Screen, Observer):
    """The runs of several methods on one stream: on a terminal a table that fills, elsewhere a line for each domain."""

    def __init__(self, console: Console, titles: dict[str, str]) -> None:
        self.runs: dict[str, RunProgress] = {}
        super().__init__(console, TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn())
        self.task = self.progress.add_task("", total=None, visible=False)
        self.titles = titles
        """Of each method, in the order of the columns."""

    def training(self, step: int, steps: int) -> None:
        about = "training the source model"
        self.progress.update(self.task, description=about, completed=step, total=steps, visible=True)
        if step % max(1, steps // 4) == 0:
            self._print_line(f"{about}: {100 * step // steps} %")

    def started(self, run: RunProgress) -> None:
        if run.method in self.runs:  # the first method on the next order of the domains
            self.runs = {}
        self.runs[run.method] = run
        title = self.titles[run.method]
        if run.record["order"] not in OWN_ORDERS:
            title += f", {run.record['order']}"
        self.progress.reset(self.task, description=title, total=run.batches, visible=True)
        self.progress.advance(self.task, run.resumed)
        done = f", {run.resumed} done already" if run.resumed else ""
        self._print_line(f"{title}: {run.batches} batches{done}")
        self.complete_visits: set[int] = set()
        self._print_visits(run, run.earlier)

    def advanced(self, run: RunProgress, entries: Sequence[Entry]) -> None:
        self.progress.advance(self.task, len(entries))
        self._print_visits(run, entries)

    def _print_line(self, line: str) -> None:
        if not self.console.is_terminal:
            self.print(line)

    def _print_visits(self, run: RunProgress, entries: Sequence[Entry]) -> None:
        """Print the score of each visit that is complete."""
        tally, names = run.tally, [*run.record["domains"], *run.record["held_out"]]
        images = run.record["images_per_domain"]
        sizes = dict(zip(names, [images] * len(names) if isinstance(images, int) else images, strict=True))
        several = len({visit.severity for visit in tally.visits}) > 1
        visits = {part["segment"] for entry in entries for part in entry["parts"]}
        for number in sorted(visits - self.complete_visits):
            visit = tally.visits[number]
            if tally.images[number] == sizes[visit.name]:
                self.complete_visits.add(number)
                label = f"{visit.name}, {visit.severity}" if several else visit.name
                label += f", round {visit.round}" if tally.visits[-1].round > 1 else ""
                score = tally.score_of(number)
                shown = "-" if score is None else tally.score.metric.show(score)
                self._print_line(f"  {label:<20}{shown:>7}")

    def render(self) -> RenderableType:
        if not self.runs:
            return self.progress
        tally = next(iter(self.runs.values())).tally
        columns: list[dict[int, float]] = []
        for method in self.titles:
            own = self.runs[method].tally if method in self.runs else None
            scores = {} if own is None else {number: own.score_of(number) for number in own.images}
            columns.append({number: score for number, score in scores.items() if score is not None})
        table = visit_table(list(self.titles.values()), tally.visits, columns, tally.score.metric)
        return Group(rich_table(table), self.progress)


class Forecast:
    """Time left, from the speed of the batches of each method so far."""

    def __init__(self, specs: Sequence[RunSpec], jobs: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.specs, self.jobs, self.clock = specs, jobs, clock
        self.left = {number: spec.batches for number, spec in enumerate(specs)}
        self._last: dict[int, float] = {}
        self._pace: dict[str, tuple[float, int]] = {}  # seconds and batches of each method

    def update(self, news: News) -> None:
        """Measure the batches since the last news of a run."""
        if not isinstance(news, Running):
            self.left.pop(news.number)
            return
        number, now, left = news.number, self.clock(), self.specs[news.number].batches - news.done
        if number in self._last and left <= self.left[number]:  # more are left where a lost run was started again
            method = self.specs[number].method
            seconds, batches = self._pace.get(method, (0.0, 0))
            self._pace[method] = seconds + now - self._last[number], batches + self.left[number] - left
        self._last[number], self.left[number] = now, left

    def seconds(self) -> float | None:
        """Seconds until the last run ends; None while no batch was measured."""
        paces = {method: seconds / batches for method, (seconds, batches) in self._pace.items() if batches}
        if not paces or not self.left:
            return None
        usual = sum(paces.values()) / len(paces)
        work = sum(left * paces.get(self.specs[number].method, usual) for number, left in self.left.items())
        return work / min(self.jobs, len(self.left))


class BenchDisplay(Screen):
    """A line for each run that ends, and what is running: bars on a terminal, a status line each minute elsewhere."""

    def __init__(self, console: Console, specs: Sequence[RunSpec], jobs: int) -> None:
        super().__init__(console, TextColumn("{task.description}"), BarColumn(20), TextColumn("{task.fields[note]}"))
        self.specs = specs
        self.forecast = Forecast(specs, jobs)
        self.running: dict[int, Running] = {}
        self.computed: set[int] = set()
        self.ended = self.failed = 0
        self.tasks: dict[int, TaskID] = {}
        self.total = self.progress.add_task("all runs", total=len(specs), note="")

    def notify(self, news: News) -> None:
        """Show what happened."""
        self.forecast.update(news)
        seconds = self.forecast.seconds()
        left = "" if seconds is None else f", about {duration(seconds)} left"
        if isinstance(news, Running):
            self._show_running(news)
        else:
            self._show_end(news, left)
        failed = f", {self.failed} failed" if self.failed else ""
        summary = f"{self.ended} of {len(self.specs)} done{failed}{left}"
        self.progress.update(self.total, completed=self.ended, note=escape(summary))
        if isinstance(news, Running) and self.is_silent:
            running = [(self.specs[number], one) for number, one in self.running.items()]
            shares = (f"{spec} ({100 * one.done // spec.batches} %, {_numbers(one)})" for spec, one in running)
            self.print(f"{summary}; running: {'; '.join(shares)}")

    def _show_running(self, news: Running) -> None:
        spec, number = self.specs[news.number], news.number
        if number in self.running:
            self.computed.add(number)
        else:
            self.tasks[number] = self.progress.add_task(escape(visible(str(spec))), total=spec.batches, note="")
        self.running[number] = news
        self.progress.update(self.tasks[number], completed=news.done, note=escape(_numbers(news)))

    def _show_end(self, news: Complete | Failed, left: str) -> None:
        self.ended += 1
        self.running.pop(news.number, None)
        if news.number in self.tasks:
            self.progress.remove_task(self.tasks.pop(news.number))
        if isinstance(news, Failed):
            self.failed += 1
            end = f"failed: {' '.join(news.sentence.split())}"
        else:
            how = f"{news.result.seconds:.0f} s" if news.number in self.computed else "read back"
            score, metric = news.result.mean_score, news.result.metric
            end = f"{'no score' if score is None else metric.show(score, more=1)} ({how})"
        self.print(f"{self.ended} of {len(self.specs)}  {self.specs[news.number]}: {end}{left}")


def _numbers(news: Running) -> str:
    name, _, unit = news.metric.partition(", ")
    return f"{name} {news.score:.1f} {unit}, {news.domain}" if news.score is not None else "starting"


def duration(seconds: float) -> str:
    """A duration in words, rounded."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"


def print_failures(names: Sequence[object], failed: Iterable[Failed]) -> None:
    """Print each failure on stderr, with the traceback of an error in this program."""
    for end in failed:
        line = visible(f"{names[end.number]}: {' '.join(end.sentence.split())}")
        print(f"{end.trace}testdg: {line}", file=sys.stderr)
