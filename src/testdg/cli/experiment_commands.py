"""Commands that run something and show what came out: their options, and nothing else."""

from pathlib import Path
from typing import Annotated, Any

import typer

from testdg.cli import options as given
from testdg.cli.options import BenchOptions, prepare_torch, with_bench_options, with_choices

DEFAULT_METHOD = "testdg_aligned"


@with_choices(several=False, benchmark="digits-c", method=DEFAULT_METHOD)
def run(
    values: dict[str, Any],
    settings: given.Settings = None,
    out: Annotated[Path, typer.Option(help="Parent of the run folders.")] = Path("runs"),
    track: given.Track = None,
    json: given.Json = False,
) -> None:
    """Adapt a model to a stream and show the error (or mIoU) on every domain, beside the source model's."""
    pairs = settings or []
    prepare_torch(bf16="bf16" in (values.get("precision"), *(pair.partition("precision=")[2] for pair in pairs)))
    from testdg.cli.run import run_command

    run_command(values, pairs, out, track, as_json=json)


@with_choices()
@with_bench_options
def bench(
    values: dict[str, Any],
    places: BenchOptions,
    grid: Annotated[
        Path | None, typer.Argument(metavar="GRID.toml", help="Grid of runs; see docs/bench.md. Options win over it.")
    ] = None,
    settings: given.Settings = None,
    json: given.Json = False,
) -> None:
    """Run methods x benchmarks x protocols x seeds and compare them with Source (exit code 1 where a run failed)."""
    prepare_torch(bf16=True)  # some of the runs may be
    from testdg.cli.bench import bench_command

    if not bench_command(grid, values, settings or [], places, as_json=json):
        raise typer.Exit(1)


@with_choices("method", "tuned", several=False, benchmark="digits-c")
@with_bench_options
def tune(
    values: dict[str, Any],
    places: BenchOptions,
    methods: Annotated[
        list[str] | None, typer.Argument(metavar="METHOD...", help="As in tent sar:come; all methods if left out.")
    ] = None,
    settings: given.Settings = None,
    write: Annotated[Path, typer.Option(metavar="FILE", help="The choice; rows of an earlier one stay.")] = Path(
        "tuned.toml"
    ),
    rates: Annotated[
        str | None, typer.Option(help="Learning rates to try for every method, in place of its own search.")
    ] = None,
    json: given.Json = False,
) -> None:
    """Choose settings: twelve configurations a method, on the extra corruptions (exit code 1 where a run failed)."""
    prepare_torch(bf16=True)  # some of the runs may be
    from testdg.cli.tune import tune_command

    if not tune_command(methods or [], values, settings or [], places, write, rates, as_json=json):
        raise typer.Exit(1)


@with_choices("method", "protocol", benchmark="digits-c")
@with_bench_options
def leaderboard(
    values: dict[str, Any],
    places: BenchOptions,
    methods: Annotated[
        list[str] | None, typer.Argument(metavar="METHOD...", help="As in tent sar:come; all of --tuned if left out.")
    ] = None,
    settings: given.Settings = None,
    best: Annotated[int, typer.Option(min=0, help="Methods that get all seeds and the longest stream.")] = 8,
    report: Annotated[Path, typer.Option(help="Folder of table, page, figures and runs.")] = Path("leaderboard"),
    cost: Annotated[bool, typer.Option(help="Measure time and memory of a batch, after the runs.")] = True,
    show: Annotated[Path | None, typer.Option(metavar="FOLDER", help="Run nothing: write again what it holds.")] = None,
    json: given.Json = False,
) -> None:
    """Run all methods on all streams and compare them: errors, worst case, cost (exit code 1 where a run failed)."""
    prepare_torch(bf16=True)  # some of the runs may be
    from testdg.cli.leaderboard import BoardRequest, leaderboard_command

    request = BoardRequest(
        keys=methods or [], values=values, pairs=settings or [], best=best, report=report, cost=cost, show=show
    )
    if not leaderboard_command(request, places, as_json=json):
        raise typer.Exit(1)


@with_choices("method", "tuned")
@with_bench_options
def ablate(
    values: dict[str, Any],
    places: BenchOptions,
    name: Annotated[str, typer.Argument(metavar="NAME|list", help="Ablation; `list` shows all.")] = "list",
    settings: given.Settings = None,
    json: given.Json = False,
) -> None:
    """Repeat an ablation of the paper with TestDG (exit code 1 where a run failed)."""
    prepare_torch(bf16=True)  # some of the runs may be
    from testdg.cli.ablate import ablate_command

    if not ablate_command(name, values, settings or [], places, as_json=json):
        raise typer.Exit(1)


@with_choices(method="testdg")
def analyze(
    values: dict[str, Any],
    name: Annotated[str, typer.Argument(metavar="NAME|list", help="Analysis; `list` shows all.")] = "list",
    settings: given.Settings = None,
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
    prepare_torch(bf16=True)  # some of the runs may be
    from testdg.cli.analyze import AnalyzeRequest, analyze_command

    request = AnalyzeRequest(
        name=name, values=values, pairs=settings or [], jobs=jobs, space=space, runs=runs, out=out, figure=figure
    )
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
