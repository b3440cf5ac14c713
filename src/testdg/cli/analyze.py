"""`testdg analyze`: numbers and a figure about what adaptation does."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from testdg.cli.bench import Training
from testdg.cli.bench_progress import BenchDisplay, complain
from testdg.cli.options import AnalyzeOptions, Chosen
from testdg.cli.screen import Bar, quieten
from testdg.errors import UserError, unknown
from testdg.files import replace_text, writing
from testdg.report.analyses import draw_analysis
from testdg.report.page import check_folder
from testdg.report.record import record_note
from testdg.report.style import check_suffix
from testdg.runs.session import open_run
from testdg.spec import CHOICES
from testdg.studies import Complete, Failed, Local, RunSpec, bench, expand, prepare
from testdg.studies.analyses import ANALYSES, Analysis, Subject, find_analysis
from testdg.studies.grid import read_settings

SPACES = ("embeddings", "features")


def analyze_command(asked: AnalyzeOptions, chosen: Chosen, *, as_json: bool) -> bool:
    """Run an analysis, or list all of them; False where a run failed."""
    if asked.name == "list":
        list_analyses(as_json)
        return True
    analysis, console = find_analysis(asked.name), Console(stderr=as_json, highlight=False, soft_wrap=True)
    if asked.space not in SPACES:
        raise unknown("space", asked.space, SPACES)
    figure = check_suffix(asked.figure or asked.out / f"{analysis.name}.png")
    if asked.figure is not None and not figure.parent.is_dir():
        raise UserError(f"{figure} cannot be written: name a file in a folder that exists", code="cannot-write")
    check_folder(asked.out, "--out")
    check_folder(asked.runs, "--runs")
    specs = _specs(analysis, chosen)
    quieten(spec.model for spec in specs)
    needed = analysis.choose(specs, asked.space)
    with Bar(console) as bar:
        prepare(specs, Training(bar))
    if analysis.check_model is not None:
        analysis.check_model(open_run(specs[0]).model)
    ends = _run(needed, asked.runs, Local(asked.jobs), console)
    failed = [end for end in ends.values() if isinstance(end, Failed)]
    complain(list(ends), failed)
    if failed:
        return False
    results = [end.result if isinstance(end := ends.get(spec), Complete) else None for spec in specs]
    with Bar(console) as bar:
        subject = Subject(specs, results, asked.space, asked.runs, bar.update)
        numbers = analysis.compute(subject)
        about = subject.describe()
    file = asked.out / f"{analysis.name}.json"
    _write(analysis, {**about, "numbers": numbers}, file, figure)
    told = {"numbers": str(file), "figure": str(figure)}
    lines = "\n".join(f"{name:<8} {text}" for name, text in told.items())
    print(json.dumps({**about, **told, "found": numbers}, indent=2) if as_json else lines)
    return True


def list_analyses(as_json: bool) -> None:
    """Name and title of every analysis."""
    about = [{"name": one.name, "title": one.title} for one in ANALYSES.values()]
    lines = "\n".join(f"{one.name:<13}{one.title}" for one in ANALYSES.values())
    print(json.dumps(about, indent=2) if as_json else lines)


def _specs(analysis: Analysis, chosen: Chosen) -> list[RunSpec]:
    """The runs of an analysis; one that reads folders makes none, and refuses what is about them."""
    if analysis.needs != "folders":
        return expand(
            analysis.grid({**chosen.values, "settings": read_settings(chosen.pairs, chosen.values["method"])})
        )
    named = [key for key in chosen.values if key != "method"]  # which has a default: nobody knows who named it
    if given := [*(CHOICES[key].option for key in named), *["--set"] * bool(chosen.pairs)]:
        message = f"{analysis.name} reads run folders (--runs) and runs nothing: leave out {', '.join(given)}"
        raise UserError(message, code="option-conflict")
    return []


def _run(specs: Sequence[RunSpec], out: Path, engine: Local, console: Console) -> dict[RunSpec, Complete | Failed]:
    """Run specs, and tell how it goes."""
    if not specs:
        return {}
    with BenchDisplay(console, specs, engine.jobs) as display:
        return dict(zip(specs, bench(specs, out, engine=engine, notify=display.notify), strict=True))


def _write(analysis: Analysis, content: dict[str, Any], file: Path, figure: Path) -> None:
    """Write the numbers and the figure."""
    with writing(file.parent):
        file.parent.mkdir(parents=True, exist_ok=True)
        replace_text(file, json.dumps(content, indent=1) + "\n")
    title, note = analysis.title, ""
    if "protocol" in content:
        who = "TestDG" if analysis.variants else content["title"]
        title = f"{who} on {content['protocol']['benchmark']}: {title}"
        note = record_note({**content["protocol"], "seed": ", ".join(map(str, content["seeds"]))})
    draw_analysis(analysis.name, content["numbers"], figure, title, note)
