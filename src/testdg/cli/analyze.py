"""`testdg analyze`: numbers and a figure about what adaptation does."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from testdg.choices import option_name
from testdg.cli.bar import Bar
from testdg.cli.bench import Training, check_folder, complain
from testdg.cli.bench_progress import BenchDisplay
from testdg.cli.quiet import quieten
from testdg.errors import UserError, unknown
from testdg.experiments import Cell, Complete, Failed, Grid, Local, bench, expand, prepare
from testdg.experiments.analyses import ANALYSES, Analysis, Subject, find_analysis
from testdg.experiments.analyses.subject import Scene
from testdg.files import replace_text, writing
from testdg.report.analyses import draw_analysis
from testdg.report.record import record_note
from testdg.report.style import check_suffix

SPACES = ("embeddings", "features")


@dataclass(frozen=True, kw_only=True)
class AnalyzeRequest:
    """What the user asked for."""

    name: str
    values: Mapping[str, Any]
    pairs: Sequence[str]
    jobs: int
    space: str
    runs: Path
    out: Path
    figure: Path | None


def analyze_command(request: AnalyzeRequest, *, as_json: bool) -> bool:
    """Run an analysis, or list all of them; False where a run failed."""
    if request.name == "list":
        list_analyses(as_json)
        return True
    analysis, console = find_analysis(request.name), Console(stderr=as_json, highlight=False, soft_wrap=True)
    if request.space not in SPACES:
        raise unknown("space", request.space, SPACES)
    figure = check_suffix(request.figure or request.out / f"{analysis.name}.png")
    if request.figure is not None and not figure.parent.is_dir():
        raise UserError(f"{figure} cannot be written: name a file in a folder that exists")
    check_folder(request.out, "--out")
    check_folder(request.runs, "--runs")
    if analysis.needs == "folders":
        _refuse_options(analysis, request)
    cells = [] if analysis.needs == "folders" else expand(_grid(analysis, request))
    quieten(cell.model for cell in cells)
    chosen, engine = analysis.choose(cells, request.space), Local(request.jobs)
    with Bar(console) as bar:
        prepare(cells, Training(bar))
    if analysis.check_model is not None:
        analysis.check_model(Scene.open(cells[0]).model)
    ends = _run(chosen, request.runs, engine, console)
    failed = [end for end in ends.values() if isinstance(end, Failed)]
    complain(list(ends), failed)
    if failed:
        return False
    results = [end.result if isinstance(end := ends.get(cell), Complete) else None for cell in cells]
    with Bar(console) as bar:
        subject = Subject(cells, results, request.space, request.runs, bar.update)
        numbers = analysis.compute(subject)
        about = subject.describe()
    _write(analysis, request, {**about, "numbers": numbers}, figure)
    told = {"numbers": str(request.out / f"{analysis.name}.json"), "figure": str(figure)}
    print(json.dumps({**about, **told, "found": numbers}, indent=2) if as_json else _lines(told))
    return True


def _refuse_options(analysis: Analysis, request: AnalyzeRequest) -> None:
    """Refuse what is about runs where none are made; the method has a default, so that nobody knows who named it."""
    given = [option_name(key) for key in request.values if key != "method"] + ["--set"] * bool(request.pairs)
    if given:
        raise UserError(f"{analysis.name} reads run folders (--runs) and runs nothing: leave out {', '.join(given)}")


def list_analyses(as_json: bool) -> None:
    """Name and title of every analysis."""
    if as_json:
        print(json.dumps([{"name": one.name, "title": one.title} for one in ANALYSES.values()], indent=2))
        return
    print("\n".join(f"{one.name:<13}{one.title}" for one in ANALYSES.values()))


def _grid(analysis: Analysis, request: AnalyzeRequest) -> Grid:
    return analysis.grid(Grid.from_options(request.values, request.pairs).defaults)


def _run(cells: Sequence[Cell], out: Path, engine: Local, console: Console) -> dict[Cell, Complete | Failed]:
    """Run cells, and tell how it goes."""
    if not cells:
        return {}
    with BenchDisplay(console, cells, engine.jobs) as display:
        return dict(zip(cells, bench(cells, out, engine=engine, tell=display.tell), strict=True))


def _write(analysis: Analysis, request: AnalyzeRequest, content: dict[str, Any], figure: Path) -> None:
    """Write the numbers and the figure into the folder."""
    with writing(request.out):
        request.out.mkdir(parents=True, exist_ok=True)
        replace_text(request.out / f"{analysis.name}.json", json.dumps(content, indent=1) + "\n")
    title, note = analysis.title, ""
    if "protocol" in content:
        who = "TestDG" if analysis.variants else content["title"]
        title = f"{who} on {content['protocol']['benchmark']}: {title}"
        note = record_note({**content["protocol"], "seed": ", ".join(map(str, content["seeds"]))})
    draw_analysis(analysis.name, content["numbers"], figure, title, note)


def _lines(told: Mapping[str, str]) -> str:
    return "\n".join(f"{name:<8} {text}" for name, text in told.items())
