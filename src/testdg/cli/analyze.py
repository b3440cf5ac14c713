"""`testdg analyze` and `testdg report`: numbers, figures and pages about runs."""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from testdg.cli.display import Bar, BenchDisplay, print_failures, quieten
from testdg.cli.options import AnalyzeOptions, RunChoices
from testdg.errors import UserError, unknown, visible
from testdg.files import replace_text, writing
from testdg.report.analyses import draw_analysis
from testdg.report.page import PAGE, TITLE, check_folder, write_report
from testdg.report.record import record_note
from testdg.report.runs import few
from testdg.report.style import check_suffix
from testdg.runs.session import open_run
from testdg.spec import CHOICES
from testdg.studies import Complete, Failed, Local, RunSpec, bench, expand, prepare
from testdg.studies.analyses import ANALYSES, Analysis, Subject, find_analysis
from testdg.studies.grid import read_settings

SPACES = ("embeddings", "features")


def analyze_command(request: AnalyzeOptions, chosen: RunChoices, *, as_json: bool) -> bool:
    """Run an analysis, or list all of them; False if a run failed."""
    if request.name == "list":
        list_analyses(as_json)
        return True
    analysis, console = find_analysis(request.name), Console(stderr=as_json, highlight=False, soft_wrap=True)
    if request.space not in SPACES:
        raise unknown("space", request.space, SPACES)
    figure = check_suffix(request.figure or request.out / f"{analysis.name}.png")
    if request.figure is not None and not figure.parent.is_dir():
        raise UserError(f"{figure} cannot be written: name a file in a folder that exists", code="cannot-write")
    check_folder(request.out, "--out")
    check_folder(request.runs, "--runs")
    specs = _specs(analysis, chosen)
    quieten(spec.model for spec in specs)
    needed = analysis.choose(specs, request.space)
    with Bar(console) as bar:
        prepare(specs, bar)
    if analysis.check_model is not None:
        analysis.check_model(open_run(specs[0]).model)
    engine = Local(request.jobs)
    ends: dict[RunSpec, Complete | Failed] = {}
    if needed:
        with BenchDisplay(console, needed, engine.jobs) as display:
            found = bench(needed, request.runs, engine=engine, notify=display.notify)
        ends = dict(zip(needed, found, strict=True))
    failed = [end for end in ends.values() if isinstance(end, Failed)]
    print_failures(list(ends), failed)
    if failed:
        return False
    results = [end.result if isinstance(end := ends.get(spec), Complete) else None for spec in specs]
    with Bar(console) as bar:
        subject = Subject(specs, results, request.space, request.runs, bar.update)
        numbers = analysis.compute(subject)
        about = subject.describe()
    file = request.out / f"{analysis.name}.json"
    content = {**about, "numbers": numbers}
    with writing(file.parent):
        file.parent.mkdir(parents=True, exist_ok=True)
        replace_text(file, json.dumps(content, indent=1) + "\n")
    _draw(analysis, content, figure)
    paths = {"numbers": str(file), "figure": str(figure)}
    lines = "\n".join(f"{name:<8} {path}" for name, path in paths.items())
    print(json.dumps({**about, **paths, "found": numbers}, indent=2) if as_json else lines)
    return True


def list_analyses(as_json: bool) -> None:
    about = [{"name": one.name, "title": one.title} for one in ANALYSES.values()]
    lines = "\n".join(f"{one.name:<13}{one.title}" for one in ANALYSES.values())
    print(json.dumps(about, indent=2) if as_json else lines)


def _specs(analysis: Analysis, chosen: RunChoices) -> list[RunSpec]:
    """The runs of an analysis; one that reads run folders has none and refuses options of runs."""
    if analysis.needs != "folders":
        return expand(
            analysis.grid({**chosen.values, "settings": read_settings(chosen.pairs, chosen.values["method"])})
        )
    named = [key for key in chosen.values if key != "method"]  # which has a default
    if given := [*(CHOICES[key].option for key in named), *["--set"] * bool(chosen.pairs)]:
        message = f"{analysis.name} reads run folders (--runs) and runs nothing: leave out {', '.join(given)}"
        raise UserError(message, code="option-conflict")
    return []


def _draw(analysis: Analysis, content: dict[str, Any], figure: Path) -> None:
    title, note = analysis.title, ""
    if "protocol" in content:
        who = "TestDG" if analysis.variants else content["title"]
        title = f"{who} on {content['protocol']['benchmark']}: {title}"
        note = record_note({**content["protocol"], "seed": ", ".join(map(str, content["seeds"]))})
    draw_analysis(analysis.name, content["numbers"], figure, title, note)


def report_command(runs: Sequence[Path], out: Path, title: str | None, *, as_json: bool) -> None:
    """Write the report and print its contents."""
    report = write_report(runs, out, title or TITLE)
    if as_json:
        plain = {
            "page": str(out / PAGE),
            "files": [str(out / name) for name in report.files],
            "groups": [{"title": group.title, **group.table.to_dict()} for group in report.groups],
            "unfinished": report.runs.unfinished,
            "copies": report.runs.copies,
            "damaged": report.runs.damaged,
        }
        print(json.dumps(plain, indent=2))
        return
    for sentence in few(report.runs.damaged):
        print(f"left out: {visible(sentence)}", file=sys.stderr)
    for group in report.groups:
        print(f"{group.title}: {group.outcome}")
    print(f"\n{report.contents}\npage    {out / PAGE}\nfiles   {len(report.files)} in {out}")
