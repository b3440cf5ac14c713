"""`testdg run`: Source and one or several methods on the same stream, side by side."""

from __future__ import annotations

import json
import os
import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from testdg.cli.progress import Display, make_display
from testdg.data.benchmarks import Benchmark, load_benchmark
from testdg.errors import UserError
from testdg.evaluation import Plan, Result, read_plans, run, source_model
from testdg.evaluation.device import find_device
from testdg.evaluation.run import choose_preset
from testdg.evaluation.samples import take_samples
from testdg.evaluation.tracking import check_tracker, tracked
from testdg.experiments.summary import leaves_one_out, run_names
from testdg.methods import find_method, parse_settings
from testdg.methods.settings import make_settings
from testdg.models import VisionModel
from testdg.report import Table, draw_stream, orders_table, plain_table, result_tables, rich_table
from testdg.report.panel import draw_panel
from testdg.report.protocol import protocol_lines, protocol_note


@dataclass(frozen=True)
class Request:
    """What the user asked for."""

    benchmark: str
    method: str
    model: str | None
    data: Path | None
    pairs: list[str]
    preset: str | None
    seed: int
    device: str
    batch_size: int | None
    protocol: str | None
    precision: str
    images: int | None
    severity: int
    domains: str | None
    out: Path
    subset: str | None = None
    skip_unreadable: bool = False
    preprocessing: str = "model"
    track: str | None = None
    source: Path | None = None
    guard: bool = False

    @property
    def methods(self) -> list[str]:
        """The methods by name, in the order of the columns; Source stands beside them in any case."""
        return [name for name in dict.fromkeys(part.strip() for part in self.method.split(",")) if name]

    def settings(self) -> dict[str, dict[str, Any]]:
        """Settings of every method; of several methods, each setting names its own as in tent.learning_rate=1e-4."""
        common = {"seed": self.seed, "precision": self.precision}
        pairs: dict[str, list[str]] = {name: [] for name in self.methods}
        for pair in self.pairs:
            name, dot, rest = pair.partition(".")
            if len(pairs) == 1 and name not in pairs:
                pairs[self.methods[0]].append(pair)
            elif dot and name in pairs:
                pairs[name].append(rest)
            else:
                told = f"--set {pair} names none of the methods {', '.join(pairs)}"
                raise UserError(f"{told}: write it as {self.methods[-1]}.{pair}")
        return {name: {**common, **parse_settings(find_method(name).Settings, own)} for name, own in pairs.items()}


def run_command(request: Request, *, as_json: bool) -> None:
    """Run Source and the method, and show both; a protocol of several orders is one run of both for each."""
    _quieten(request)
    console = Console(stderr=as_json, highlight=False, soft_wrap=True)
    check_tracker(request.track)
    with make_display(console) as display:
        benchmark, model, runs = run_methods(request, display)
    if as_json:
        print(json.dumps(as_json_values(request.methods, runs), indent=2))
    elif len(runs) == 1:
        show(console, runs[0], benchmark, model)
    else:
        show_orders(console, runs)


def as_json_values(methods: list[str], runs: list[list[Result]]) -> Any:
    """The result of the method, or its spread over several streams; of several methods, a list."""
    columns = list(zip(*(results[-len(methods) :] for results in runs), strict=True))
    found = [column[0].to_dict() if len(column) == 1 else spread(list(column)) for column in columns]
    return found[0] if len(found) == 1 else found


def _quieten(request: Request) -> None:
    """Keep other libraries' chatter away; only the download of a model keeps its bar."""
    for library in ("TRANSFORMERS", "HF_HUB"):
        os.environ.setdefault(f"{library}_VERBOSITY", "error")
    if request.model is None or Path(request.model).is_dir():
        os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")


def run_methods(request: Request, display: Display) -> tuple[Benchmark, VisionModel, list[list[Result]]]:
    """Run Source and then the methods (Source alone where it is the method) on the stream of each plan."""
    if not request.methods:
        raise UserError("--method names no method: see `testdg methods`")
    settings = request.settings()
    read = None if request.protocol is None else read_plans(request.protocol)
    benchmark = _load_benchmark(request)
    plans = [plan for one in read or read_plans(benchmark.protocol) for plan in one.expand(benchmark)]
    device = find_device(request.device)
    # Mistakes that the run would find by itself, but only after a source model was trained and Source has run.
    for name, own in settings.items():
        kind = find_method(name)
        make_settings(kind.Settings, {**kind.preset(choose_preset(kind, benchmark, request.preset)), **own})
    for plan in plans:
        plan.stream(plan.choose(benchmark), request.batch_size)
    model = source_model(benchmark, request.model, device=device, observer=display, preprocessing=request.preprocessing)
    return benchmark, model, [_run_plan(request, plan, benchmark, model, settings, display) for plan in plans]


def _run_plan(
    request: Request,
    plan: Plan,
    benchmark: Benchmark,
    model: VisionModel,
    settings: dict[str, dict[str, Any]],
    display: Display,
) -> list[Result]:
    titles = {name: find_method(name).title for name in ("source", *request.methods)}
    display.expect(titles)
    common: dict[str, Any] = {
        "model": model,
        "protocol": plan,
        "batch_size": request.batch_size,
        "device": model.device.type,
        "out": request.out,
    }
    with tracked(display, request.track) as observer:
        common["observer"] = observer
        found = []
        if "source" not in request.methods:
            found.append(run(benchmark, "source", settings={"precision": request.precision}, **common))
        for name, own in settings.items():
            common |= {"preset": request.preset, "source": request.source, "guard": request.guard}
            found.append(run(benchmark, name, settings=own, **common))
        return found


def _load_benchmark(request: Request) -> Benchmark:
    names = None if request.domains is None else [name.strip() for name in request.domains.split(",")]
    domains = None if names is None else [name for name in names if name]
    return load_benchmark(
        request.benchmark,
        request.data,
        images=request.images,
        severity=request.severity,
        domains=domains,
        subset=request.subset,
        skip_unreadable=request.skip_unreadable,
    )


def show(console: Console, results: list[Result], benchmark: Benchmark, model: VisionModel) -> None:
    """Print protocol, tables and the places of the figures."""
    titles, result = _titles(results), results[-1]
    console.print("\n".join(protocol_lines(result.protocol)), markup=False)
    _show_tables(console, result_tables(titles, results))
    if result.skipped:
        console.print(f"{result.skipped} images could not be read and were left out", markup=False)
    for title, found in zip(titles, results, strict=True):
        for line in caution_lines(title, found):
            console.print(line, markup=False)
    figure = result.folder / "figure.png"
    if not figure.exists():
        runs = dict(zip(titles, results, strict=True))
        draw_stream(figure, runs, _heading(result), protocol_note(result.protocol))
    for found in results[1:] or results:
        console.print(f"run     {found.folder} ({found.seconds:.0f} s)", markup=False)
    console.print(f"figure  {figure}", markup=False)
    if len(results) == 2 and (panel := _make_panel(results[-1], titles, benchmark, model)) is not None:
        console.print(f"panel   {panel}", markup=False)


def caution_lines(title: str, result: Result) -> list[str]:
    """What a run did to keep a model from harm, and what went wrong in it, in words."""
    lines = []
    if result.skipped_updates:
        lines.append(f"{title}: {result.skipped_updates} updates were left out, their loss or gradient was not finite")
    if result.guard is not None:
        skipped, back, source = (result.guard.get(key, 0) for key in ("skip", "roll_back", "fall_back"))
        told = f"{skipped} batches predicted without learning, {back} times back to a healthy state"
        lines.append(f"{title}: guard: {told}, {source} times back to the source")
    return lines


def _make_panel(result: Result, titles: list[str], benchmark: Benchmark, model: VisionModel) -> Path | None:
    """Draw what the run did to pictures; None for classification, and where the adapted state was deleted."""
    panel = result.folder / "panel.png"
    if benchmark.task == "segmentation" and not panel.exists() and (result.folder / "state").exists():
        samples, headings = take_samples(result.folder, benchmark, model), [titles[0], f"{titles[1]}, after the stream"]
        note = protocol_note({**result.protocol, "views": "one"})  # whatever the views of the run
        draw_panel(panel, samples, headings, benchmark.classes, benchmark.palette, _heading(result), note)
    return panel if panel.exists() else None


def _heading(result: Result) -> str:
    return f"{find_method(result.method['name']).title} on {result.protocol['benchmark']}"


def show_orders(console: Console, runs: list[list[Result]]) -> None:
    """Print the protocol of the first order (or left-out domain), the table of all, and the run folders."""
    told = "runs       {}, one for each domain" if leaves_one_out(runs) else "orders     {}, one run each"
    console.print("\n".join(protocol_lines(runs[0][-1].protocol)), markup=False)
    console.print(f"{told.format(len(runs))}; the first is described above", markup=False)
    _show_tables(console, [orders_table(_titles(runs[0]), runs)])
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


def _titles(results: list[Result]) -> list[str]:
    return [find_method(result.method["name"]).title for result in results]


def _show_tables(console: Console, tables: list[Table]) -> None:
    for table in tables:
        console.print()
        if console.is_terminal:
            console.print(rich_table(table))
        else:
            console.print("\n".join(plain_table(table)), markup=False)
    console.print()
