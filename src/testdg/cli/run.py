"""`testdg run`: Source and one or several methods on the same stream, side by side."""

import json
import statistics
from collections.abc import Mapping
from itertools import groupby
from pathlib import Path
from typing import Any

from rich.console import Console

from testdg.cli.display import RunDisplay, quieten
from testdg.cli.options import RunChoices
from testdg.errors import UserError
from testdg.methods import find_method
from testdg.report import Table, draw_stream, orders_table, plain_table, result_tables, rich_table
from testdg.report.pictures import draw_panel, take_samples
from testdg.report.record import record_lines, record_note
from testdg.runs import Result
from testdg.runs.compare import by_key
from testdg.runs.observer import check_tracker, tracked
from testdg.runs.run import run_session
from testdg.runs.session import open_run
from testdg.spec import SOURCE
from testdg.studies import Grid, RunSpec, expand
from testdg.studies.grid import read_settings
from testdg.studies.summary import leaves_one_out, run_names


def run_command(chosen: RunChoices, out: Path, track: str | None, *, as_json: bool) -> None:
    """Run Source and the methods and show the results; a protocol of several orders is one run of all for each."""
    console = Console(stderr=as_json, highlight=False, soft_wrap=True)
    check_tracker(track)
    check_choices(chosen.values)
    methods = list(dict.fromkeys(chosen.values["method"]))
    specs = expand(Grid({**chosen.values, "settings": read_settings(chosen.pairs, methods)}, title=""))
    if len({(spec.stream, spec.precision) for spec in specs}) > len({spec.stream for spec in specs}):
        message = "all methods of a run share one precision: use --precision, or a run for each"
        raise UserError(message, code="option-conflict")
    quieten(spec.model for spec in specs)
    titles = {spec.method: find_method(spec.method).title for spec in specs}
    results: list[list[Result]] = []
    with RunDisplay(console, titles) as display:
        for _, group in groupby(specs, lambda spec: spec.stream):
            with tracked(display, track) as observer:
                results.append([run_session(open_run(spec, observer), out, observer) for spec in group])
    if as_json:
        print(json.dumps(as_json_values(methods, results), indent=2))
    elif len(results) == 1:
        show(console, results[0], list(titles.values()), specs[-1])
    else:
        show_orders(console, results, list(titles.values()))


def check_choices(values: Mapping[str, Any]) -> None:
    """Refuse values that have no effect, and those that are for grids."""
    if not values["method"]:
        raise UserError("--method names no method: see `testdg methods`", code="no-method")
    if values.get("guard") and {*values["method"]} == {SOURCE}:
        message = "--guard watches what a method learns, and source learns nothing: leave out --guard"
        raise UserError(message, code="option-conflict")
    for key in ("benchmark", "protocol", "seed"):
        if len(values.get(key, ())) > 1:
            raise UserError(f"run shows one stream: name one {key}, or use testdg bench", code="several-runs")


def as_json_values(methods: list[str], runs: list[list[Result]]) -> dict[str, Any] | list[dict[str, Any]]:
    """The result of the method, or its spread over several streams; of several methods, a list."""
    by_method = by_key((result.method["name"], result) for results in runs for result in results)
    found = []
    for name in methods:
        mine = by_method[name]
        found.append(mine[0].to_dict() if len(mine) == 1 else spread(mine))
    return found[0] if len(found) == 1 else found


def show(console: Console, results: list[Result], titles: list[str], spec: RunSpec) -> None:
    """Print the record, the tables and the paths of the figures."""
    result = results[-1]
    heading = f"{titles[-1]} on {result.record['benchmark']}"
    console.print("\n".join(record_lines(result.record)), markup=False)
    _show_tables(console, result_tables(titles, results))
    if result.skipped:
        console.print(f"{result.skipped} images could not be read and were left out", markup=False)
    for title, one in zip(titles, results, strict=True):
        for line in caution_lines(title, one):
            console.print(line, markup=False)
    figure = result.folder / "figure.png"
    if not figure.exists():
        draw_stream(figure, dict(zip(titles, results, strict=True)), heading, record_note(result.record))
    for one in results[1:] or results:
        console.print(f"run     {one.folder} ({one.seconds:.0f} s)", markup=False)
    console.print(f"figure  {figure}", markup=False)
    if len(results) == 2 and result.record["task"] == "segmentation":
        show_panel(console, result, titles, heading, spec)


def caution_lines(title: str, result: Result) -> list[str]:
    """Updates that were left out, and interventions of the guard."""
    lines = []
    if result.skipped_updates:
        lines.append(f"{title}: {result.skipped_updates} updates were left out, their loss or gradient was not finite")
    if result.guard is not None:
        skipped, back, source = (result.guard.get(key, 0) for key in ("skip", "roll_back", "fall_back"))
        counts = f"{skipped} batches predicted without learning, {back} times back to a healthy state"
        lines.append(f"{title}: guard: {counts}, {source} times back to the source")
    return lines


def show_panel(console: Console, result: Result, titles: list[str], heading: str, spec: RunSpec) -> None:
    """Draw the predicted maps of a run and print the path; nothing if the adapted state was deleted."""
    panel = result.folder / "panel.png"
    if not panel.exists() and (result.folder / "state").exists():
        session, headings = open_run(spec), [titles[0], f"{titles[1]}, after the stream"]
        samples = take_samples(result.folder, session.benchmark, session.model)
        note = record_note({**result.record, "views": "one"})  # the maps of the panel come from one view
        draw_panel(panel, samples, headings, session.benchmark.classes, session.benchmark.palette, heading, note)
    if panel.exists():
        console.print(f"panel   {panel}", markup=False)


def show_orders(console: Console, runs: list[list[Result]], titles: list[str]) -> None:
    """Print the record of the first order (or left-out domain), the table of all, and the run folders."""
    heading = "runs       {}, one for each domain" if leaves_one_out(runs) else "orders     {}, one run each"
    console.print("\n".join(record_lines(runs[0][-1].record)), markup=False)
    console.print(f"{heading.format(len(runs))}; the first is described above", markup=False)
    _show_tables(console, [orders_table(titles, runs)])
    for name, results in zip(run_names(runs), runs, strict=True):
        console.print(f"{name}  {results[-1].folder}", markup=False)


def spread(results: list[Result]) -> dict[str, Any]:
    """Results of one method on several streams, with the mean and the standard deviation of their scores.

    Where each stream leaves out another domain, these are the scores on the left-out domains.
    """
    left_out = leaves_one_out([[result] for result in results])
    found = [result.held_out_score if left_out else result.mean_score for result in results]
    scores = [score for score in found if score is not None]
    return {
        f"mean_{results[0].metric.key}": statistics.fmean(scores),
        "deviation": statistics.stdev(scores),
        "runs" if left_out else "orders": [result.to_dict() for result in results],
    }


def _show_tables(console: Console, tables: list[Table]) -> None:
    for table in tables:
        console.print()
        if console.is_terminal:
            console.print(rich_table(table))
        else:
            console.print("\n".join(plain_table(table)), markup=False)
    console.print()
