"""`testdg adapt` and `testdg serve`: a model that adapts to a user's own pictures, on one or many streams."""

from __future__ import annotations

import json
import logging
import os
import sys
import time
import warnings
from collections.abc import Mapping, Sequence
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.progress import BarColumn, TextColumn, TimeRemainingColumn
from rich.text import Text

from testdg.cli.display import Screen, print_failures, quieten
from testdg.errors import UserError, visible
from testdg.report.pictures import draw_summary
from testdg.runs.adapt import Request, Watcher, adapt_frames
from testdg.runs.pictures import PredictedBatch
from testdg.runs.session import PictureOptions
from testdg.runs.summary import StreamStatistics
from testdg.studies.engine import Failed
from testdg.studies.fleet import End, Ended, News, Noted, Stopped, StreamProgress, adapt_fleet, find_streams
from testdg.studies.ray import Lost

NAMED = 5  # pictures that were left out and are named on the screen; skipped.csv has all


def adapt_command(request: Request, *, as_json: bool) -> None:
    """Run the stream, show its progress and print the summary."""
    quieten([str(request.model)])
    console = Console(stderr=as_json, highlight=False, soft_wrap=True)
    with warnings.catch_warnings(), StreamScreen(console) as screen:
        warnings.filterwarnings("ignore", module="PIL")
        warnings.showwarning = lambda message, *_, **__: screen.note(str(message))
        summary = adapt_frames(request, screen, draw_summary)
    if as_json:
        print(json.dumps(summary, indent=2))
    else:
        print_summary(console, summary)


def print_summary(console: Console, summary: Mapping[str, Any]) -> None:
    lines = [
        f"pictures  {summary['predictions']} predicted, {summary['skipped']} left out, "
        f"{summary['images_per_second']:.1f} a second",
        f"method    {summary['method']} on {summary['model']}; {summary['changes']} changes of conditions noticed, "
        f"learnt from {summary['learnt']} pictures",
        f"changed   {100 * summary['changed_by_adaptation']:.1f} % of the predictions; confidence "
        f"{summary['confidence']:.2f}, the source's {summary['source_confidence']:.2f}",
    ]
    if (guard := summary["guard"]) is not None:
        counts = f"{guard['skip']} batches without learning, {guard['roll_back']} times back to a healthy state"
        lines.append(f"guard     {counts}, {guard['fall_back']} times back to the source")
    lines += [f"table     {summary['table']}", f"figure    {summary['figure']}"]
    for line in lines:
        console.print(visible(line), markup=False)


class StreamScreen(Screen, Watcher):
    """On a terminal a bar that moves, and a line below it; elsewhere a line at every tenth and every ten seconds."""

    interval = 10.0

    def __init__(self, console: Console) -> None:
        self.text = "loading the model"
        super().__init__(console, TextColumn("adapting"), BarColumn(), TimeRemainingColumn())
        self.task = self.progress.add_task("", total=None)
        self.done, self.first, self.tenths = 0, 0, 0
        self.total: int | None = None
        self.begun = time.monotonic()

    def render(self) -> RenderableType:
        return Group(self.progress, Text(self.text))

    def note(self, text: str) -> None:
        """Print a line that stays."""
        self.print(f"note      {text}")

    def started(self, total: int | None, done: int) -> None:
        self.total, self.done, self.first, self.begun = total, done, done, time.monotonic()
        if done:
            self.note(f"{done} pictures are done already")
        self.text = "waiting for the first pictures"
        self.progress.update(self.task, total=total, completed=done)

    def advanced(self, batch: PredictedBatch, statistics: StreamStatistics) -> None:
        """Count, name the first pictures that are left out, and show the progress."""
        self.done += len(batch.predictions) + len(batch.skipped)
        for number, one in enumerate(batch.skipped, statistics.skipped - len(batch.skipped)):
            if number < NAMED:
                self.note(f"left out: {one.file}: {one.reason}")
            elif number == NAMED:
                self.note("more are left out: see skipped.csv")
        self.text = self.progress_line(statistics)
        self.progress.update(self.task, completed=self.done)
        tenths = 10 * self.done // self.total if self.total else 0
        if not self.console.is_terminal and (tenths > self.tenths or self.is_silent):
            self.tenths = tenths
            self.print(self.text)

    def progress_line(self, statistics: StreamStatistics) -> str:
        rate = (self.done - self.first) / max(time.monotonic() - self.begun, 1e-9)
        whole = f" of {self.total}" if self.total else ""
        confidence, changed = statistics.all.mean("confidence"), 100 * statistics.all.mean("differs")
        line = f"{self.done}{whole}, {rate:.1f}/s, confidence {confidence:.2f}, {statistics.changes} changes"
        left_out = f", {statistics.skipped} left out" if statistics.skipped else ""
        return f"{line}, {changed:.1f} % changed by adaptation{left_out}"


# Many streams on a Ray cluster


def fleet_command(request: Request, address: str | None, cpus: float, gpus: float | None, *, as_json: bool) -> bool:
    """Run all streams, show their progress and print the totals; False if one failed."""
    quieten([str(request.model)])
    console = Console(file=sys.stderr if as_json else sys.stdout, highlight=False, soft_wrap=True)
    names = list(find_streams(request))
    with Path(os.devnull).open("w") as nowhere, redirect_stdout(nowhere), FleetScreen(console, names) as screen:
        # Ray prints a page for a lost process; the screen shows a line
        ends = adapt_fleet(request, address=address, cpus=cpus, gpus=gpus, notify=screen.notify, draw=draw_summary)
    failed = [end for end in ends.values() if isinstance(end, Failed)]
    print_failures(names, failed)
    if any(isinstance(end, Stopped) for end in ends.values()):
        raise KeyboardInterrupt
    if as_json:
        print(json.dumps(totals_of(ends), indent=2))
    else:
        about = totals_of(ends)
        total = about["totals"]
        counts = f"{total['predictions']} predicted, {total['skipped']} left out, learnt from {total['learnt']}"
        console.print(f"streams   {len(about['streams'])} of {len(ends)} came to their ends", markup=False)
        console.print(f"pictures  {counts}; {total['changes']} changes of conditions noticed", markup=False)
        console.print(visible(f"tables    {request.out}/STREAM/predictions.csv"), markup=False)
    return not failed


def totals_of(ends: Mapping[str, End]) -> dict[str, Any]:
    """The summaries and failures of all streams as plain JSON; the totals are of the streams that are complete."""
    streams = {name: end.summary for name, end in ends.items() if isinstance(end, Ended)}
    failed = {name: end.sentence for name, end in ends.items() if isinstance(end, Failed)}
    counted = ("predictions", "skipped", "learnt", "changes")
    totals = {key: sum(one[key] for one in streams.values()) for key in counted}
    return {"totals": totals, "streams": streams, "failed": failed}


class FleetScreen(Screen):
    """A line for every stream that ends, and the progress of all."""

    def __init__(self, console: Console, names: Sequence[str]) -> None:
        columns = [TextColumn("all streams"), BarColumn(20), TextColumn("{task.fields[note]}")]
        super().__init__(console, *columns, redirect_stdout=False)
        self.names = names
        self.pictures: dict[int, int] = {}
        self.running: set[int] = set()
        self.ended = self.failed = self.lost = 0
        self.task = self.progress.add_task("", total=len(names), note="")

    def notify(self, news: News) -> None:
        if isinstance(news, Noted):
            self.print(f"note      {news.text}")
        elif isinstance(news, StreamProgress):
            self.pictures[news.number] = news.done
            self.running.add(news.number)
            if self.is_silent:
                self.print(self._summary())
        elif isinstance(news, Lost):
            self.lost += 1
            self.running.discard(news.number)
            self.print(f"{self.names[news.number]}: its process was lost; another one resumes from the saved state")
        else:
            self.ended += 1
            self.running.discard(news.number)
            self.failed += isinstance(news, Failed)
            self.print(f"{self.ended} of {len(self.names)}  {self.names[news.number]}: {end_line(news)}")
        self.progress.update(self.task, completed=self.ended, note=self._summary())

    def _summary(self) -> str:
        pictures = sum(self.pictures.values())
        lost = f", {self.lost} lost and started again" if self.lost else ""
        failed = f", {self.failed} failed" if self.failed else ""
        return (
            f"{self.ended} of {len(self.names)} ended, {len(self.running)} running, {pictures} pictures{lost}{failed}"
        )


def end_line(end: End) -> str:
    """How a stream ended, in a few words."""
    if isinstance(end, Stopped):
        return "stopped; its state is saved"
    if isinstance(end, Failed):
        return f"failed: {' '.join(end.sentence.split())}"
    one = end.summary
    changed = f"{100 * one['changed_by_adaptation']:.1f} % changed by adaptation"
    counts = f"{one['predictions']} predicted, {one['skipped']} left out"
    return f"{counts}, {one['changes']} changes, {changed}, {one['images_per_second']:.1f} a second"


# The server


def require_server() -> None:
    try:
        import fastapi  # noqa: F401
        import prometheus_client  # noqa: F401
        import python_multipart  # noqa: F401
        import uvicorn  # noqa: F401
    except ImportError as error:
        raise UserError(f"testdg serve needs {error.name}: pip install 'testdg[serve]'", "not-installed") from error


def serve_command(
    model: str | None,
    choices: PictureOptions,
    settings: dict[str, Any],
    out: Path,
    host: str,
    port: int,
    token_file: Path | None,
    resident: int,
    *,
    demo: bool,
) -> None:
    """Load the model, print the address, and serve until Ctrl-C or SIGTERM."""
    require_server()
    from testdg.serve.demo import NAME, open_demo
    from testdg.serve.limits import Limits
    from testdg.serve.security import find_token
    from testdg.serve.server import Place, serve
    from testdg.serve.session import open_source

    if (model is None) != demo:
        raise UserError("choose either a model with --model, or the demonstration with --demo", "option-conflict")
    if demo and (choices.source is not None or choices.classes is not None):
        message = "--demo has its own source pictures and classes: leave out --source and --classes"
        raise UserError(message, "option-conflict")
    where = Place(out=out, host=host, port=port, token=find_token(token_file), limits=Limits(resident=resident))
    where.check()
    console = Console(stderr=True, highlight=False, soft_wrap=True)
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING, format="%(asctime)s %(message)s", datefmt="%H:%M:%S")
    logging.getLogger("testdg").setLevel(logging.INFO)  # a line for every action and every problem
    warnings.filterwarnings("ignore", module="PIL")
    warnings.showwarning = lambda message, *_, **__: console.print(f"note      {visible(str(message))}", markup=False)
    if demo:
        console.print("the source model of the demonstration is trained once, which takes half a minute", markup=False)
        source = open_demo(where.out, choices.method, settings, choices.device)
    else:
        assert model is not None
        quieten([model])
        source = open_source(model, choices, settings)
    for note in source.notes:
        console.print(f"note      {visible(note)}", markup=False)
    shown = f"[{host}]" if ":" in host else host
    console.print(f"serving   {source.adapter.name} on {source.model.name}; states in {where.out}", markup=False)
    console.print(f"page      http://{shown}:{port}/{f'?stream={NAME}' if demo else ''}", markup=False)
    lost = serve(source, where, demo=demo)
    for sentence in lost or ["everything is saved"]:
        console.print(f"ended     {visible(sentence)}", markup=False)
