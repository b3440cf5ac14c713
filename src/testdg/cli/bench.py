"""`testdg bench`: a grid of runs, and tables that compare them."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from testdg.cli.bar import Bar
from testdg.cli.bench_progress import BenchDisplay
from testdg.errors import UserError
from testdg.evaluation import Observer
from testdg.experiments import (
    BenchTable,
    Cell,
    Failed,
    Grid,
    Local,
    bench,
    expand,
    prepare,
    read_grid,
    summarise,
)
from testdg.files import replace_text, writing
from testdg.report.bench import bench_csv, bench_markdown, bench_text


@dataclass(frozen=True)
class BenchRequest:
    """What the user asked for."""

    grid: Path | None
    lists: Mapping[str, str | None]
    """Values that are separated by commas."""
    values: Mapping[str, Any]
    pairs: Sequence[str]
    jobs: int
    out: Path
    csv: Path | None
    markdown: Path | None


def bench_command(request: BenchRequest, *, as_json: bool) -> bool:
    """Run the grid and show its tables; False where a run failed."""
    engine, console = Local(request.jobs), Console(stderr=as_json, highlight=False, soft_wrap=True)
    _check_files(request)
    cells = expand(make_grid(request))
    _quieten()
    with Bar(console) as bar:
        prepare(cells, _Training(bar))
    with BenchDisplay(console, cells, request.jobs) as display:
        ends = bench(cells, request.out, engine=engine, tell=display.tell)
    tables = summarise(cells, ends)
    _write(request, tables)
    failed = [end for end in ends if isinstance(end, Failed)]
    if as_json:
        print(json.dumps(_plain(tables, cells, failed), indent=2))
    elif tables:
        console.print(f"\n{bench_text(tables)}\n\nruns  {request.out}", markup=False)
    _complain(cells, failed)
    return not failed


def make_grid(request: BenchRequest) -> Grid:
    """The grid of a file or of the options alone; options win over the file."""
    lists = {key: _split(key, text) for key, text in request.lists.items() if text is not None}
    given = {**lists, **{key: value for key, value in request.values.items() if value is not None}}
    if request.grid is None:
        if "method" not in given:
            raise UserError("bench needs a grid file, or --methods, as in --methods source,tent,testdg")
        return Grid({**given, "settings": _settings(request.pairs)})
    if request.pairs or "method" in given:
        raise UserError(f"{request.grid} says which methods run and how: leave out --methods and --set")
    return read_grid(request.grid).override(given)


def _split(key: str, text: str) -> list[Any]:
    """Parts between commas; options of a protocol stay with its name, and seeds become numbers."""
    parts: list[Any] = []
    for part in (part.strip() for part in text.split(",") if part.strip()):
        if key == "protocol" and "=" in part and parts:
            parts[-1] += f",{part}"
        else:
            parts.append(int(part) if key == "seeds" and part.isdecimal() else part)
    return parts


def _settings(pairs: Sequence[str]) -> dict[str, dict[str, str]]:
    """Settings of each method from METHOD.KEY=VALUE."""
    found: dict[str, dict[str, str]] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        method, dot, key = name.partition(".")
        if not (equals and dot):
            raise UserError(f"--set takes METHOD.KEY=VALUE, as in tent.learning_rate=1e-4; got {pair!r}")
        found.setdefault(method, {})[key] = value
    return found


def _check_files(request: BenchRequest) -> None:
    """Refuse places that cannot be written before anything is computed."""
    for path in (request.csv, request.markdown):
        if path is not None and (path.is_dir() or not path.parent.is_dir()):
            raise UserError(f"{path} cannot be written: name a file in a folder that exists")


def _quieten() -> None:
    """Keep other libraries' chatter away."""
    for library in ("TRANSFORMERS", "HF_HUB"):
        os.environ.setdefault(f"{library}_VERBOSITY", "error")


class _Training(Observer):
    """Shows the training of source models."""

    def __init__(self, bar: Bar) -> None:
        self.bar = bar

    def training(self, step: int, steps: int) -> None:
        """Move the bar."""
        self.bar.update("training the source model", step, steps)


def _write(request: BenchRequest, tables: Sequence[BenchTable]) -> None:
    for path, make in ((request.csv, bench_csv), (request.markdown, bench_markdown)):
        if path is not None:
            with writing(path.parent):
                replace_text(path, make(tables))


def _plain(tables: Sequence[BenchTable], cells: Sequence[Cell], failed: Sequence[Failed]) -> dict[str, Any]:
    told = [{"run": str(cells[end.number]), "sentence": end.sentence} for end in failed]
    return {"tables": [table.to_dict() for table in tables], "failed": told}


def _complain(cells: Sequence[Cell], failed: Sequence[Failed]) -> None:
    """Tell what failed, on stderr; with the traceback where the mistake is ours."""
    for end in failed:
        print(f"{end.trace}testdg: {cells[end.number]}: {' '.join(end.sentence.split())}", file=sys.stderr)
