"""Commands that run something and show what came out: their options, and nothing else."""

from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from testdg.cli import options as given
from testdg.cli.options import BenchOptions, Chosen, prepare_torch, with_choices, with_options

DEFAULT_METHOD = "testdg_aligned"


@with_choices(several=False, benchmark="digits-c", method=DEFAULT_METHOD)
def run(
    chosen: Chosen,
    out: Annotated[Path, Option(help="Parent of the run folders.")] = Path("runs"),
    track: given.Track = None,
    json: given.Json = False,
) -> None:
    """Adapt a model to a stream and show the error (or mIoU) on every domain, beside the source model's."""
    asked = (chosen.values.get("precision"), *(pair.partition("precision=")[2] for pair in chosen.pairs))
    prepare_torch(bf16="bf16" in asked)
    from testdg.cli.run import run_command

    run_command(chosen, out, track, as_json=json)


@with_choices()
@with_options("places", BenchOptions)
def bench(
    chosen: Chosen,
    places: BenchOptions,
    grid: Annotated[
        Path | None, Argument(metavar="GRID.toml", help="Grid of runs; see docs/bench.md. Options win over it.")
    ] = None,
    json: given.Json = False,
) -> bool:
    """Run methods x benchmarks x protocols x seeds and compare them with Source (exit code 1 where a run failed)."""
    prepare_torch(bf16=True)  # some of the runs may be
    from testdg.cli.bench import bench_command

    return bench_command(grid, chosen, places, as_json=json)


@with_choices("method", "tuned", several=False, benchmark="digits-c")
@with_options("places", BenchOptions)
@with_options("asked", given.TuneOptions)
def tune(chosen: Chosen, places: BenchOptions, asked: given.TuneOptions, json: given.Json = False) -> bool:
    """Choose settings: twelve configurations a method, on the extra corruptions (exit code 1 where a run failed)."""
    prepare_torch(bf16=True)  # some of the runs may be
    from testdg.cli.tune import tune_command

    return tune_command(asked, chosen, places, as_json=json)


@with_choices("method", "protocol", benchmark="digits-c")
@with_options("places", BenchOptions)
@with_options("asked", given.BoardOptions)
def leaderboard(chosen: Chosen, places: BenchOptions, asked: given.BoardOptions, json: given.Json = False) -> bool:
    """Run all methods on all streams and compare them: errors, worst case, cost (exit code 1 where a run failed)."""
    prepare_torch(bf16=True)  # some of the runs may be
    from testdg.cli.leaderboard import leaderboard_command

    return leaderboard_command(asked, chosen, places, as_json=json)


@with_choices("method", "tuned")
@with_options("places", BenchOptions)
def ablate(
    chosen: Chosen,
    places: BenchOptions,
    name: Annotated[str, Argument(metavar="NAME|list", help="Ablation; `list` shows all.")] = "list",
    json: given.Json = False,
) -> bool:
    """Repeat an ablation of the paper with TestDG (exit code 1 where a run failed)."""
    prepare_torch(bf16=True)  # some of the runs may be
    from testdg.cli.bench import ablate_command

    return ablate_command(name, chosen, places, as_json=json)


@with_choices(method="testdg")
@with_options("asked", given.AnalyzeOptions)
def analyze(chosen: Chosen, asked: given.AnalyzeOptions, json: given.Json = False) -> bool:
    """Look into what adaptation does: numbers as JSON, and a figure (exit code 1 where a run failed)."""
    prepare_torch(bf16=True)  # some of the runs may be
    from testdg.cli.analyze import analyze_command

    return analyze_command(asked, chosen, as_json=json)


def report(
    runs: Annotated[list[Path], Argument(metavar="RUNS", help="Run folders, or parents of them.")],
    out: Annotated[Path, Option(help="Folder of the report; files of an earlier one are replaced.")] = Path("report"),
    title: Annotated[str | None, Option(help="Title of the page.")] = None,
    json: given.Json = False,
) -> None:
    """Make a page from run folders, with the tables as Markdown, LaTeX and CSV and the figures as files."""
    from testdg.cli.report import report_command

    report_command(runs, out, title, as_json=json)
