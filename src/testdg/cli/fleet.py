"""`testdg adapt --engine ray`: every subfolder is a stream, on a Ray cluster."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, TextColumn

from testdg.cli.bench_progress import complain
from testdg.cli.screen import Screen, quieten
from testdg.errors import visible
from testdg.report.pictures import draw_summary
from testdg.runs.adapt import Request
from testdg.studies.camera import End, Ended, Seen, Stopped
from testdg.studies.engine import Failed
from testdg.studies.fleet import Lost, News, Noted, adapt_fleet, find_streams


def fleet_command(request: Request, places: Mapping[str, Any], *, as_json: bool) -> bool:
    """Run all streams, show how it goes, and say what became of them; False where one failed."""
    quieten([str(request.model)])
    console = Console(file=sys.stderr if as_json else sys.stdout, highlight=False, soft_wrap=True)
    names = list(find_streams(request))
    with Path(os.devnull).open("w") as nowhere, redirect_stdout(nowhere), FleetScreen(console, names) as screen:
        # of a process that is lost Ray prints a page; the screen has a line
        ends = adapt_fleet(request, tell=screen.notify, draw=draw_summary, **places)
    failed = [end for end in ends.values() if isinstance(end, Failed)]
    complain(names, failed)
    if any(isinstance(end, Stopped) for end in ends.values()):
        raise KeyboardInterrupt
    if as_json:
        print(json.dumps(plain(ends), indent=2))
    else:
        show(console, plain(ends), request, len(ends))
    return not failed


def plain(ends: Mapping[str, End]) -> dict[str, Any]:
    """What became of all streams, as plain JSON; totals are of those that came to their ends."""
    streams = {name: end.summary for name, end in ends.items() if isinstance(end, Ended)}
    failed = {name: end.sentence for name, end in ends.items() if isinstance(end, Failed)}
    counted = ("predictions", "skipped", "learnt", "changes")
    totals = {key: sum(one[key] for one in streams.values()) for key in counted}
    return {"totals": totals, "streams": streams, "failed": failed}


def show(console: Console, about: Mapping[str, Any], request: Request, streams: int) -> None:
    """Say in a few lines what came out."""
    total = about["totals"]
    told = f"{total['predictions']} predicted, {total['skipped']} left out, learnt from {total['learnt']}"
    console.print(f"streams   {len(about['streams'])} of {streams} came to their ends", markup=False)
    console.print(f"pictures  {told}; {total['changes']} changes of conditions noticed", markup=False)
    console.print(visible(f"tables    {request.out}/STREAM/predictions.csv"), markup=False)


class FleetScreen(Screen):
    """A line for every stream that ends, and how far all of them are."""

    def __init__(self, console: Console, names: Sequence[str]) -> None:
        columns = [TextColumn("all streams"), BarColumn(20), TextColumn("{task.fields[note]}")]
        super().__init__(console, *columns, redirect_stdout=False)
        self.names = names
        self.pictures: dict[int, int] = {}
        self.running: set[int] = set()
        self.ended = self.failed = self.lost = 0
        self.task = self.progress.add_task("", total=len(names), note="")

    def notify(self, news: News) -> None:
        """Show what happened."""
        if isinstance(news, Noted):
            self.print(f"note      {news.text}")
        elif isinstance(news, Seen):
            self.pictures[news.number] = news.done
            self.running.add(news.number)
            if self.is_silent:
                self.print(self._summary())
        elif isinstance(news, Lost):
            self.lost += 1
            self.running.discard(news.number)
            self.print(f"{self.names[news.number]}: its process was lost; another one goes on from the last state")
        else:
            self._ends(news)
        self.progress.update(self.task, completed=self.ended, note=self._summary())

    def _ends(self, end: End) -> None:
        self.ended += 1
        self.running.discard(end.number)
        self.failed += isinstance(end, Failed)
        self.print(f"{self.ended} of {len(self.names)}  {self.names[end.number]}: {told(end)}")

    def _summary(self) -> str:
        pictures = sum(self.pictures.values())
        lost = f", {self.lost} lost and started again" if self.lost else ""
        failed = f", {self.failed} failed" if self.failed else ""
        return (
            f"{self.ended} of {len(self.names)} ended, {len(self.running)} running, {pictures} pictures{lost}{failed}"
        )


def told(end: End) -> str:
    """The end of a stream, in a few words."""
    if isinstance(end, Stopped):
        return "stopped; what it has done is saved"
    if isinstance(end, Failed):
        return f"failed: {' '.join(end.sentence.split())}"
    one = end.summary
    changed = f"{100 * one['changed_by_adaptation']:.1f} % changed by adaptation"
    counts = f"{one['predictions']} predicted, {one['skipped']} left out"
    return f"{counts}, {one['changes']} changes, {changed}, {one['images_per_second']:.1f} a second"
