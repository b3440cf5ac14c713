"""How a bench shows while it goes: a line for every run that ends, and on a terminal what runs now."""

import sys
import time
from collections.abc import Callable, Iterable, Sequence

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, TaskID, TextColumn

from testdg.cli.screen import Screen
from testdg.errors import visible
from testdg.studies import Complete, Failed, News, Running, RunSpec


class Forecast:
    """Time left, from how fast the batches of each method went by so far."""

    def __init__(self, specs: Sequence[RunSpec], jobs: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.specs, self.jobs, self.clock = specs, jobs, clock
        self.left = {number: spec.batches for number, spec in enumerate(specs)}
        self._last: dict[int, float] = {}
        self._pace: dict[str, tuple[float, int]] = {}  # seconds and batches of each method

    def hear(self, news: News) -> None:
        """Measure the batches since the last news of a spec."""
        if not isinstance(news, Running):
            self.left.pop(news.number)
            return
        number, now, left = news.number, self.clock(), self.specs[news.number].batches - news.done
        if number in self._last and left <= self.left[number]:  # not where a lost run began anew
            method = self.specs[number].method
            seconds, batches = self._pace.get(method, (0.0, 0))
            self._pace[method] = seconds + now - self._last[number], batches + self.left[number] - left
        self._last[number], self.left[number] = now, left

    def seconds(self) -> float | None:
        """Seconds until the last spec ends; None while no batch was measured."""
        paces = {method: seconds / batches for method, (seconds, batches) in self._pace.items() if batches}
        if not paces or not self.left:
            return None
        usual = sum(paces.values()) / len(paces)
        work = sum(left * paces.get(self.specs[number].method, usual) for number, left in self.left.items())
        return work / min(self.jobs, len(self.left))


class BenchDisplay(Screen):
    """Tells of every run."""

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
        self.forecast.hear(news)
        if isinstance(news, Running):
            self._runs(news)
        else:
            self._ends(news)
        self.progress.update(self.total, completed=self.ended, note=escape(self._summary()))

    def _runs(self, news: Running) -> None:
        spec, number = self.specs[news.number], news.number
        if number in self.running:
            self.computed.add(number)
        else:
            self.tasks[number] = self.progress.add_task(escape(visible(str(spec))), total=spec.batches, note="")
        self.running[number] = news
        self.progress.update(self.tasks[number], completed=news.done, note=escape(_numbers(news)))
        if self.is_silent:
            running = [(self.specs[number], one) for number, one in self.running.items()]
            shares = (f"{spec} ({100 * one.done // spec.batches} %, {_numbers(one)})" for spec, one in running)
            self.print(f"{self._summary()}; running: {'; '.join(shares)}")

    def _ends(self, news: Complete | Failed) -> None:
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
        self.print(f"{self.ended} of {len(self.specs)}  {self.specs[news.number]}: {end}{self._left()}")

    def _summary(self) -> str:
        failed = f", {self.failed} failed" if self.failed else ""
        return f"{self.ended} of {len(self.specs)} done{failed}{self._left()}"

    def _left(self) -> str:
        seconds = self.forecast.seconds()
        return "" if seconds is None else f", about {duration(seconds)} left"


def _numbers(news: Running) -> str:
    name, _, unit = news.metric.partition(", ")
    return f"{name} {news.score:.1f} {unit}, {news.domain}" if news.score is not None else "starting"


def duration(seconds: float) -> str:
    """Seconds in words, roughly."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"


def complain(names: Sequence[object], failed: Iterable[Failed]) -> None:
    """Tell what failed, on stderr; with the traceback where the mistake is ours."""
    for end in failed:
        told = visible(f"{names[end.number]}: {' '.join(end.sentence.split())}")
        print(f"{end.trace}testdg: {told}", file=sys.stderr)
