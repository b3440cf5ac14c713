"""`testdg run`: Source and a method on the same stream, side by side."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from testdg.cli.progress import Display, make_display
from testdg.data.benchmarks import Benchmark, load_benchmark
from testdg.evaluation import Result, run, source_model
from testdg.evaluation.device import find_device
from testdg.evaluation.protocol import split_domains
from testdg.evaluation.run import choose_preset
from testdg.methods import find_method, parse_settings
from testdg.methods.settings import make_settings
from testdg.report import draw_stream
from testdg.report.figure import read_events
from testdg.report.protocol import protocol_lines, protocol_note
from testdg.report.table import plain_table, rich_table, rows_of


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
    protocol: str
    precision: str
    images: int | None
    severity: int
    domains: str | None
    out: Path


def run_command(request: Request, *, as_json: bool) -> None:
    """Run Source and the method, and show both."""
    _quieten(request)
    console = Console(stderr=as_json, highlight=False, soft_wrap=True)
    with make_display(console) as display:
        results = run_methods(request, display)
    if as_json:
        print(json.dumps(results[-1].to_dict(), indent=2))
    else:
        show(console, results)


def _quieten(request: Request) -> None:
    """Keep other libraries' chatter away; only the download of a model keeps its bar."""
    for library in ("TRANSFORMERS", "HF_HUB"):
        os.environ.setdefault(f"{library}_VERBOSITY", "error")
    if request.model is None or Path(request.model).is_dir():
        os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")


def run_methods(request: Request, display: Display) -> list[Result]:
    """Run Source and then the method (Source alone where it is the method) on one stream."""
    kind = find_method(request.method)
    settings = {"seed": request.seed, "precision": request.precision, **parse_settings(kind.Settings, request.pairs)}
    benchmark = _load_benchmark(request)
    stream = benchmark.stream(request.batch_size)
    device = find_device(request.device)
    # Mistakes that the run would find by itself, but only after a source model was trained and Source has run.
    make_settings(kind.Settings, {**kind.preset(choose_preset(kind, benchmark, request.preset)), **settings})
    split_domains(request.protocol, [domain.name for domain in stream.domains])
    display.expect({"source": find_method("source").title, request.method: kind.title})
    model = source_model(benchmark, request.model, device=device, observer=display)
    common: dict[str, Any] = {
        "model": model,
        "protocol": request.protocol,
        "batch_size": stream.batch_size,
        "device": device.type,
        "out": request.out,
        "observer": display,
    }
    if request.method == "source":
        return [run(benchmark, "source", settings=settings, preset=request.preset, **common)]
    reference = run(benchmark, "source", settings={"precision": settings["precision"]}, **common)
    return [reference, run(benchmark, request.method, settings=settings, preset=request.preset, **common)]


def _load_benchmark(request: Request) -> Benchmark:
    names = None if request.domains is None else [name.strip() for name in request.domains.split(",")]
    domains = None if names is None else [name for name in names if name]
    return load_benchmark(
        request.benchmark, request.data, images=request.images, severity=request.severity, domains=domains
    )


def show(console: Console, results: list[Result]) -> None:
    """Print protocol, table and the place of the figure."""
    titles = [find_method(result.method["name"]).title for result in results]
    result, rows = results[-1], rows_of(results)
    console.print("\n".join(protocol_lines(result.protocol)), markup=False)
    console.print()
    if console.is_terminal:
        console.print(rich_table(titles, rows))
    else:
        console.print("\n".join(plain_table(titles, rows)), markup=False)
    console.print()
    figure = result.folder / "figure.png"
    if not figure.exists():
        runs = {title: read_events(found.folder) for title, found in zip(titles, results, strict=True)}
        draw_stream(figure, runs, f"{titles[-1]} on {result.protocol['benchmark']}", protocol_note(result.protocol))
    console.print(f"run     {result.folder} ({result.seconds:.0f} s)\nfigure  {figure}", markup=False)
