"""`testdg adapt`: predictions for a folder of pictures, a list, a video or standard input, while the model adapts."""

from __future__ import annotations

import json
import time
import warnings
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.text import Text

from testdg.cli.screen import Drawn, quieten
from testdg.errors import visible
from testdg.report.pictures import draw_summary
from testdg.runs.adapt import Request, Watcher, adapt_frames
from testdg.runs.pictures import Answered
from testdg.runs.session import DEFAULT_METHOD
from testdg.runs.summary import Tally
from testdg.studies.grid import method_settings

_LINES_EVERY = 10.0  # seconds between two lines where there is no terminal
_NAMED = 5  # pictures that were left out and are named on the screen; skipped.csv has all


def settings_of(method: str | None, pairs: list[str]) -> dict[str, Any]:
    """The settings of a method that `--set` gives."""
    return method_settings(method or DEFAULT_METHOD, pairs)


def adapt_command(request: Request, *, as_json: bool) -> None:
    """Run the stream and show how it goes."""
    quieten([str(request.model)])
    console = Console(stderr=as_json, highlight=False, soft_wrap=True)
    with warnings.catch_warnings(), Screen(console) as screen:
        warnings.filterwarnings("ignore", module="PIL")
        warnings.showwarning = lambda message, *_, **__: screen.note(str(message))
        summary = adapt_frames(request, screen, draw_summary)
    if as_json:
        print(json.dumps(summary, indent=2))
    else:
        show(console, summary)


def show(console: Console, summary: dict[str, Any]) -> None:
    """Say in a few lines what came out."""
    lines = [
        f"pictures  {summary['predictions']} predicted, {summary['skipped']} left out, "
        f"{summary['images_per_second']:.1f} a second",
        f"method    {summary['method']} on {summary['model']}; {summary['changes']} changes of conditions noticed, "
        f"learnt from {summary['learnt']} pictures",
        f"changed   {100 * summary['changed_by_adaptation']:.1f} % of the predictions; confidence "
        f"{summary['confidence']:.2f}, the source's {summary['source_confidence']:.2f}",
    ]
    if (guard := summary["guard"]) is not None:
        told = f"{guard['skip']} batches without learning, {guard['roll_back']} times back to a healthy state"
        lines.append(f"guard     {told}, {guard['fall_back']} times back to the source")
    lines += [f"table     {summary['table']}", f"figure    {summary['figure']}"]
    for line in lines:
        console.print(visible(line), markup=False)


class Screen(Watcher, Drawn):
    """On a terminal a bar that moves, and a line under it; elsewhere a line at every tenth, and every ten seconds."""

    def __init__(self, console: Console) -> None:
        self.console, self.done, self.first, self.tenths = console, 0, 0, 0
        self.total: int | None = None
        self.begun = self.last = time.monotonic()
        self.bar = Progress(TextColumn("adapting"), BarColumn(), TimeRemainingColumn(), console=console)
        self.task = self.bar.add_task("", total=None)
        self.text = "loading the model"
        if console.is_terminal:
            self.drawing = Live(console=console, refresh_per_second=4, transient=True, get_renderable=self._render)

    def _render(self) -> Group:
        return Group(self.bar, Text(self.text))

    def note(self, text: str) -> None:
        """Print a line that stays."""
        self.console.print(f"note      {visible(text)}", markup=False)

    def started(self, total: int | None, done: int) -> None:
        """Begin to count."""
        self.total, self.done, self.first, self.begun = total, done, done, time.monotonic()
        if done:
            self.note(f"{done} pictures are done already")
        self.text = "waiting for the first pictures"
        self.bar.update(self.task, total=total, completed=done)

    def answered(self, answered: Answered, tally: Tally) -> None:
        """Count, name the first pictures that are left out, and show how it goes."""
        self.done += len(answered.predictions) + len(answered.skipped)
        for number, one in enumerate(answered.skipped, tally.skipped - len(answered.skipped)):
            if number < _NAMED:
                self.note(f"left out: {one.file}: {one.reason}")
            elif number == _NAMED:
                self.note("more are left out: see skipped.csv")
        self.text = self.line(tally)
        self.bar.update(self.task, completed=self.done)
        tenths = 10 * self.done // self.total if self.total else 0
        late = tenths > self.tenths or time.monotonic() - self.last > _LINES_EVERY
        if late and not self.console.is_terminal:
            self.tenths, self.last = tenths, time.monotonic()
            self.console.print(self.text, markup=False)

    def line(self, tally: Tally) -> str:
        """How it goes, in one line."""
        rate = (self.done - self.first) / max(time.monotonic() - self.begun, 1e-9)
        whole = f" of {self.total}" if self.total else ""
        return (
            f"{self.done}{whole}, {rate:.1f}/s, confidence {tally.all.mean('confidence'):.2f}, "
            f"{tally.changes} changes, {100 * tally.all.mean('differs'):.1f} % changed by adaptation"
            + (f", {tally.skipped} left out" if tally.skipped else "")
        )
