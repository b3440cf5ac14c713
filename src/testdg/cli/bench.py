"""`testdg bench`: a grid of runs, and tables that compare them."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console

from testdg.cli.bar import Bar
from testdg.cli.bench_progress import BenchDisplay
from testdg.errors import UserError, unknown, visible
from testdg.evaluation import Observer
from testdg.evaluation.tracking import check_tracker
from testdg.experiments import (
    BenchTable,
    Cell,
    Engine,
    Failed,
    Grid,
    Local,
    bench,
    expand,
    prepare,
    read_grid,
    summarise,
)
from testdg.experiments.rows import keep_names
from testdg.experiments.storage import Remote, find_out
from testdg.files import replace_text, writing
from testdg.report.ablation import Layout


@dataclass(frozen=True)
class BenchRequest:
    """What the user asked for."""

    grid: Path | None
    lists: Mapping[str, str | None]
    """Values that are separated by commas."""
    values: Mapping[str, Any]
    pairs: Sequence[str]
    jobs: int
    out: str
    csv: Path | None
    markdown: Path | None
    engine: str = "local"
    address: str | None = None
    gpus: float | None = None
    track: str | None = None


def bench_command(request: BenchRequest, *, as_json: bool) -> bool:
    """Run the grid that was asked for and show its tables; False where a run failed."""
    return run_grid(make_grid(request), request, Layout(), as_json=as_json)


def run_grid(grid: Grid, request: BenchRequest, layout: Layout, *, as_json: bool) -> bool:
    """Run a grid and show its tables; False where a run failed."""
    console = Console(stderr=as_json, highlight=False, soft_wrap=True)
    _check_places(request)
    cells = [replace(cell, track=request.track) for cell in expand(grid)]
    engine = make_engine(request)
    quieten(cells)
    with Bar(console) as bar:
        prepare(cells, Training(bar), devices=isinstance(engine, Local))
    with BenchDisplay(console, cells, engine.jobs) as display:
        ends = bench(cells, request.out, engine=engine, tell=display.tell)
    keep_names(grid.title, cells, ends)
    tables = summarise(cells, ends)
    _write(request, layout, tables)
    failed = [end for end in ends if isinstance(end, Failed)]
    if as_json:
        print(json.dumps({**layout.plain(tables), "failed": _told(cells, failed)}, indent=2))
    elif tables:
        console.print(f"\n{layout.text(tables)}\n\nruns  {request.out}", markup=False)
    complain(cells, failed)
    return not failed


def make_engine(request: BenchRequest) -> Engine:
    """The engine that was asked for."""
    if request.engine == "ray":
        from testdg.experiments.ray_engine import Ray

        return Ray(request.address, jobs=request.jobs, gpus=request.gpus)
    if request.engine != "local":
        raise unknown("engine", request.engine, ("local", "ray"))
    for option, value in (("--address", request.address), ("--gpus-per-cell", request.gpus)):
        if value is not None:
            raise UserError(f"{option} is for a Ray cluster: add --engine ray, or leave it out")
    return Local(request.jobs)


def make_grid(request: BenchRequest) -> Grid:
    """The grid of a file or of the options alone; options win over the file."""
    given = given_values(request.lists, request.values)
    if request.grid is None:
        if "method" not in given:
            raise UserError("bench needs a grid file, or --methods, as in --methods source,tent,testdg")
        return Grid({**given, "settings": read_settings(request.pairs, given["method"])})
    if request.pairs or "method" in given:
        raise UserError(f"{request.grid} says which methods run and how: leave out --methods and --set")
    return read_grid(request.grid).override(given)


def given_values(lists: Mapping[str, str | None], values: Mapping[str, Any]) -> dict[str, Any]:
    """The values of a grid that options give; `lists` are separated by commas."""
    several = {key: _split(key, text) for key, text in lists.items() if text is not None}
    return {**several, **{key: value for key, value in values.items() if value is not None}}


def _split(key: str, text: str) -> list[Any]:
    """Parts between commas; options of a protocol stay with its name, and seeds become numbers."""
    parts: list[Any] = []
    for part in (part.strip() for part in text.split(",") if part.strip()):
        if key == "protocol" and "=" in part and parts:
            parts[-1] += f",{part}"
        else:
            parts.append(int(part) if key == "seeds" and part.isdecimal() else part)
    return parts


def read_settings(pairs: Sequence[str], methods: Sequence[str]) -> dict[str, dict[str, str]]:
    """Settings of each method from METHOD.KEY=VALUE; the methods are those that run."""
    found: dict[str, dict[str, str]] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        method, dot, key = name.partition(".")
        if not (equals and dot):
            raise UserError(f"--set takes METHOD.KEY=VALUE, as in tent.learning_rate=1e-4; got {pair!r}")
        if method not in methods:
            raise UserError(f"--set {pair} is for {method}, which is not among the methods {', '.join(methods)}")
        found.setdefault(method, {})[key] = value
    return found


def _check_places(request: BenchRequest) -> None:
    """Refuse places that cannot be written, and trackers that are not there, before anything is computed."""
    check_tracker(request.track)
    if isinstance(out := find_out(request.out), Remote):
        out.open()
    else:
        check_folder(out, "--out")
    for path in (request.csv, request.markdown):
        if path is not None and (path.is_dir() or not path.parent.is_dir()):
            raise UserError(f"{path} cannot be written: name a file in a folder that exists")


def check_folder(path: Path, option: str) -> None:
    """Refuse a file where a folder is needed, before anything is computed."""
    if path.exists() and not path.is_dir():
        raise UserError(f"{path} is a file: choose a folder with {option}")


def quieten(cells: Sequence[Cell]) -> None:
    """Keep other libraries' chatter away; only the download of a model keeps its bar."""
    for library in ("TRANSFORMERS", "HF_HUB"):
        os.environ.setdefault(f"{library}_VERBOSITY", "error")
    if all(cell.model is None or Path(cell.model).is_dir() for cell in cells):
        os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")


class Training(Observer):
    """Shows the training of source models."""

    def __init__(self, bar: Bar) -> None:
        self.bar = bar

    def training(self, step: int, steps: int) -> None:
        """Move the bar."""
        self.bar.update("training the source model", step, steps)


def _write(request: BenchRequest, layout: Layout, tables: Sequence[BenchTable]) -> None:
    for path, make in ((request.csv, layout.csv), (request.markdown, layout.markdown)):
        if path is not None:
            with writing(path.parent):
                replace_text(path, make(tables))


def _told(cells: Sequence[Cell], failed: Sequence[Failed]) -> list[dict[str, str]]:
    return [{"run": str(cells[end.number]), "sentence": end.sentence} for end in failed]


def complain(cells: Sequence[Cell], failed: Sequence[Failed]) -> None:
    """Tell what failed, on stderr; with the traceback where the mistake is ours."""
    for end in failed:
        told = visible(f"{cells[end.number]}: {' '.join(end.sentence.split())}")
        print(f"{end.trace}testdg: {told}", file=sys.stderr)
