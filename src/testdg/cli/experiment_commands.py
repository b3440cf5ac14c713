"""Commands that run something and show what came out: their options, and nothing else."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from testdg.cli import options as given
from testdg.cli.options import prepare_torch

DEFAULT_METHOD = "testdg_aligned"


def run(
    benchmark: Annotated[str, typer.Option(help="Benchmark; see `testdg benchmarks`.")] = "digits-c",
    method: Annotated[
        str, typer.Option(help="Method, or several separated by commas; see `testdg methods`.")
    ] = DEFAULT_METHOD,
    model: Annotated[
        str | None, typer.Option(help="Model: a folder or a hub id; the benchmark's own if left out.")
    ] = None,
    data: Annotated[Path | None, typer.Option(help="Folder of the benchmark's data.")] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="KEY=VALUE", help="Setting of the method; of several, METHOD.KEY=VALUE; repeatable."
        ),
    ] = None,
    source: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Clean images to align to; the benchmark's training images if left out."),
    ] = None,
    guard: Annotated[
        bool, typer.Option("--guard", help="Learn only from what is worth it, and undo what harms the model.")
    ] = False,
    preset: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Published settings of a benchmark, see `testdg methods METHOD`, or none; an embedded benchmark "
            "applies its own if left out.",
        ),
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the method's random numbers.")] = 0,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or mps.")] = "auto",
    batch_size: Annotated[int | None, typer.Option(help="Images per batch; the benchmark's own if left out.")] = None,
    protocol: Annotated[
        str | None,
        typer.Option(
            metavar="NAME|FILE.toml",
            help="continual, held-out, leave-one-out, gradual, cyclic, mixed, dirichlet, orders, order-0 to order-9, "
            "or a file; options follow as in cyclic,rounds=5. If left out: continual, or cyclic for segmentation.",
        ),
    ] = None,
    precision: Annotated[str, typer.Option(help="fp32 or bf16.")] = "fp32",
    images: Annotated[int | None, typer.Option(help="First images of each domain; all if left out.")] = None,
    severity: Annotated[int, typer.Option(help="Severity of the corruptions, 1 to 5.")] = 5,
    domains: Annotated[str | None, typer.Option(help="Domains in order, separated by commas.")] = None,
    subset: Annotated[
        str | None, typer.Option(metavar="all|first:N|FILE", help="Images of a set of image files; all if left out.")
    ] = None,
    skip_unreadable: Annotated[
        bool, typer.Option("--skip-unreadable", help="Leave out and count image files that cannot be decoded.")
    ] = False,
    preprocessing: Annotated[
        str, typer.Option(help="model (size, mean and deviation of the model) or paper (those of its tables).")
    ] = "model",
    out: Annotated[Path, typer.Option(help="Parent of the run folders.")] = Path("runs"),
    track: given.Track = None,
    json: given.Json = False,
) -> None:
    """Adapt a model to a stream and show the error (or mIoU) on every domain, beside the source model's."""
    prepare_torch(bf16="bf16" in (precision, *(pair.removeprefix("precision=") for pair in settings or [])))
    from testdg.cli.run import Request, run_command

    request = Request(
        benchmark=benchmark,
        method=method,
        model=model,
        data=data,
        pairs=settings or [],
        preset=preset,
        seed=seed,
        device=device,
        batch_size=batch_size,
        protocol=protocol,
        precision=precision,
        images=images,
        severity=severity,
        domains=domains,
        subset=subset,
        skip_unreadable=skip_unreadable,
        preprocessing=preprocessing,
        out=out,
        track=track,
        source=source,
        guard=guard,
    )
    run_command(request, as_json=json)


def bench(
    grid: Annotated[
        Path | None, typer.Argument(metavar="GRID.toml", help="Grid of runs; see docs/bench.md. Options win over it.")
    ] = None,
    methods: Annotated[str | None, typer.Option(help="Methods, separated by commas; instead of a file.")] = None,
    benchmarks: Annotated[str | None, typer.Option(help="Benchmarks, separated by commas.")] = None,
    protocols: given.Protocols = None,
    seeds: given.Seeds = None,
    model: given.Model = None,
    data: given.Data = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="METHOD.KEY=VALUE", help="Setting of a method; repeatable; instead of a file."),
    ] = None,
    preset: given.Preset = None,
    device: given.Device = None,
    batch_size: given.BatchSize = None,
    precision: given.Precision = None,
    images: given.Images = None,
    severity: given.Severity = None,
    domains: given.Domains = None,
    subset: given.Subset = None,
    preprocessing: given.Preprocessing = None,
    jobs: given.Jobs = 1,
    engine: given.Engine = "local",
    address: given.Address = None,
    gpus_per_cell: given.GpusPerCell = None,
    out: given.Out = "runs",
    track: given.Track = None,
    csv: given.Csv = None,
    markdown: given.Markdown = None,
    json: given.Json = False,
) -> None:
    """Run methods x benchmarks x protocols x seeds and compare them with Source (exit code 1 where a run failed)."""
    asked = given.choose({**locals(), "method": methods})
    prepare_torch(bf16=True)  # some of the runs may be
    from testdg.cli.bench import BenchRequest, bench_command

    files = csv, markdown
    request = BenchRequest(grid, *asked, settings or [], jobs, out, *files, engine, address, gpus_per_cell, track)
    if not bench_command(request, as_json=json):
        raise typer.Exit(1)


def ablate(
    name: Annotated[str, typer.Argument(metavar="NAME|list", help="Ablation; `list` shows all.")] = "list",
    benchmarks: Annotated[str | None, typer.Option(help="Benchmarks, separated by commas.")] = None,
    protocols: given.Protocols = None,
    seeds: given.Seeds = None,
    model: given.Model = None,
    data: given.Data = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Setting of TestDG that all rows share; repeatable."),
    ] = None,
    preset: given.Preset = None,
    device: given.Device = None,
    batch_size: given.BatchSize = None,
    precision: given.Precision = None,
    images: given.Images = None,
    severity: given.Severity = None,
    domains: given.Domains = None,
    subset: given.Subset = None,
    preprocessing: given.Preprocessing = None,
    jobs: given.Jobs = 1,
    engine: given.Engine = "local",
    address: given.Address = None,
    gpus_per_cell: given.GpusPerCell = None,
    out: given.Out = "runs",
    track: given.Track = None,
    csv: given.Csv = None,
    markdown: given.Markdown = None,
    json: given.Json = False,
) -> None:
    """Repeat an ablation of the paper with TestDG (exit code 1 where a run failed)."""
    asked = given.choose(locals())
    prepare_torch(bf16=True)  # some of the runs may be
    from testdg.cli.ablate import ablate_command
    from testdg.cli.bench import BenchRequest

    files = csv, markdown
    request = BenchRequest(None, *asked, settings or [], jobs, out, *files, engine, address, gpus_per_cell, track)
    if not ablate_command(name, request, as_json=json):
        raise typer.Exit(1)


def analyze(
    name: Annotated[str, typer.Argument(metavar="NAME|list", help="Analysis; `list` shows all.")] = "list",
    methods: Annotated[str, typer.Option(help="Methods, separated by commas.")] = "testdg",
    benchmarks: Annotated[str | None, typer.Option("--benchmark", help="Benchmark; digits-c if left out.")] = None,
    protocols: Annotated[str | None, typer.Option("--protocol", help="Protocol, with one stream.")] = None,
    seeds: given.Seeds = None,
    model: given.Model = None,
    data: given.Data = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="METHOD.KEY=VALUE", help="Setting of a method; repeatable.")
    ] = None,
    preset: given.Preset = None,
    device: given.Device = None,
    batch_size: given.BatchSize = None,
    precision: given.Precision = None,
    images: given.Images = None,
    severity: given.Severity = None,
    domains: given.Domains = None,
    subset: given.Subset = None,
    preprocessing: given.Preprocessing = None,
    jobs: given.Jobs = 1,
    space: Annotated[str, typer.Option(help="embeddings (of TestDG) or features (of any method).")] = "embeddings",
    runs: Annotated[Path, typer.Option(help="Parent of the run folders.")] = Path("runs"),
    out: Annotated[Path, typer.Option(help="Folder of the numbers and the figure.")] = Path("analyses"),
    figure: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The figure: .png, .pdf or .svg; OUT/NAME.png if left out.")
    ] = None,
    json: given.Json = False,
) -> None:
    """Look into what adaptation does: numbers as JSON, and a figure (exit code 1 where a run failed)."""
    asked = given.choose({**locals(), "method": methods})
    prepare_torch(bf16=True)  # some of the runs may be
    from testdg.cli.analyze import AnalyzeRequest, analyze_command

    request = AnalyzeRequest(name, *asked, settings or [], jobs, space, runs, out, figure)
    if not analyze_command(request, as_json=json):
        raise typer.Exit(1)


def report(
    runs: Annotated[list[Path], typer.Argument(metavar="RUNS", help="Run folders, or parents of them.")],
    out: Annotated[Path, typer.Option(help="Folder of the report; files of an earlier one are replaced.")] = Path(
        "report"
    ),
    title: Annotated[str | None, typer.Option(help="Title of the page.")] = None,
    json: given.Json = False,
) -> None:
    """Make a page from run folders, with the tables as Markdown, LaTeX and CSV and the figures as files."""
    from testdg.cli.report import report_command

    report_command(runs, out, title, as_json=json)
