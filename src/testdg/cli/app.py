"""Commands and exit codes."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

import testdg
from testdg.cli import options as given
from testdg.errors import UserError

DEFAULT_METHOD = "testdg"
INTERRUPTED = 130

app = typer.Typer(
    name="testdg",
    help="Continual test-time adaptation of vision models.",
    invoke_without_command=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


def execute(arguments: list[str] | None = None) -> int:
    """Run a command; mistakes of the user become one sentence on stderr."""
    try:
        code = app(args=arguments, prog_name="testdg", standalone_mode=False)
        sys.stdout.flush()
    except UserError as error:
        return _complain(str(error), 2)
    except BrokenPipeError:
        return _drop_output()
    except OSError as error:
        where = "standard output" if error.filename is None else error.filename
        _drop_output()
        return _complain(f"{where}: {error.strerror or error}", 2)
    except (KeyboardInterrupt, typer.Abort):
        code = INTERRUPTED
    except Exception as error:
        if not hasattr(error, "format_message"):  # what typer raises for wrong usage has one
            raise
        return _complain(error.format_message(), 2)
    if code == INTERRUPTED:
        return _complain("interrupted; the same command goes on from the last saved state", INTERRUPTED)
    return code if isinstance(code, int) else 0


def _complain(sentence: str, code: int) -> int:
    print(f"testdg: {' '.join(sentence.split())}", file=sys.stderr)
    return code


def _drop_output() -> int:
    """Send what is still unwritten nowhere, so that Python does not complain at its end; 1, as other tools give."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 1


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"testdg {testdg.__version__}")
        raise typer.Exit


@app.callback()
def _root(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """Continual test-time adaptation of vision models."""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())
        raise typer.Exit(2)


def _prepare_torch(*, bf16: bool) -> None:
    """Set what torch reads when it is imported; the user's own environment wins."""
    # Threads that wait by spinning take the cores from each other: beside another job, a run is many times slower.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    if bf16:  # some virtual machines announce AMX and then kill the process that uses it: keep to plain AVX-512
        os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")


Json = Annotated[bool, typer.Option("--json", help="Print JSON, and nothing else, on stdout.")]


@app.command()
def run(
    benchmark: Annotated[str, typer.Option(help="Benchmark; see `testdg benchmarks`.")] = "digits-c",
    method: Annotated[str, typer.Option(help="Method; see `testdg methods`.")] = DEFAULT_METHOD,
    model: Annotated[
        str | None, typer.Option(help="Model: a folder or a hub id; the benchmark's own if left out.")
    ] = None,
    data: Annotated[Path | None, typer.Option(help="Folder of the benchmark's data.")] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Setting of the method; repeatable.")
    ] = None,
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
            help="continual, held-out, gradual, cyclic, mixed, dirichlet, orders, order-0 to order-9, or a file; "
            "options follow as in cyclic,rounds=5. If left out: continual, or cyclic for segmentation.",
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
    json: Json = False,
) -> None:
    """Adapt a model to a stream and show the error (or mIoU) on every domain, beside the source model's."""
    _prepare_torch(bf16="bf16" in (precision, *(pair.removeprefix("precision=") for pair in settings or [])))
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
    )
    run_command(request, as_json=json)


@app.command()
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
    json: Json = False,
) -> None:
    """Run methods x benchmarks x protocols x seeds and compare them with Source (exit code 1 where a run failed)."""
    asked = given.choose({**locals(), "method": methods})
    _prepare_torch(bf16=True)  # some of the runs may be
    from testdg.cli.bench import BenchRequest, bench_command

    files = csv, markdown
    request = BenchRequest(grid, *asked, settings or [], jobs, out, *files, engine, address, gpus_per_cell, track)
    if not bench_command(request, as_json=json):
        raise typer.Exit(1)


@app.command()
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
    json: Json = False,
) -> None:
    """Repeat an ablation of the paper with TestDG (exit code 1 where a run failed)."""
    asked = given.choose(locals())
    _prepare_torch(bf16=True)  # some of the runs may be
    from testdg.cli.ablate import ablate_command
    from testdg.cli.bench import BenchRequest

    files = csv, markdown
    request = BenchRequest(None, *asked, settings or [], jobs, out, *files, engine, address, gpus_per_cell, track)
    if not ablate_command(name, request, as_json=json):
        raise typer.Exit(1)


@app.command()
def analyze(
    name: Annotated[str, typer.Argument(metavar="NAME|list", help="Analysis; `list` shows all.")] = "list",
    methods: Annotated[str, typer.Option(help="Methods, separated by commas.")] = DEFAULT_METHOD,
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
    json: Json = False,
) -> None:
    """Look into what adaptation does: numbers as JSON, and a figure (exit code 1 where a run failed)."""
    asked = given.choose({**locals(), "method": methods})
    _prepare_torch(bf16=True)  # some of the runs may be
    from testdg.cli.analyze import AnalyzeRequest, analyze_command

    request = AnalyzeRequest(name, *asked, settings or [], jobs, space, runs, out, figure)
    if not analyze_command(request, as_json=json):
        raise typer.Exit(1)


@app.command()
def report(
    runs: Annotated[list[Path], typer.Argument(metavar="RUNS", help="Run folders, or parents of them.")],
    out: Annotated[Path, typer.Option(help="Folder of the report; files of an earlier one are replaced.")] = Path(
        "report"
    ),
    title: Annotated[str | None, typer.Option(help="Title of the page.")] = None,
    json: Json = False,
) -> None:
    """Make a page from run folders, with the tables as Markdown, LaTeX and CSV and the figures as files."""
    from testdg.cli.report import report_command

    report_command(runs, out, title, as_json=json)


@app.command()
def methods(
    name: Annotated[str | None, typer.Argument(help="Show one method's settings.")] = None, json: Json = False
) -> None:
    """List the methods, or the settings of one."""
    from testdg.cli.listing import list_methods, show_method

    if name is None:
        list_methods(json)
    else:
        show_method(name, json)


@app.command()
def benchmarks(
    check: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Say what a data folder holds, lacks and has wrong instead.")
    ] = None,
    json: Json = False,
) -> None:
    """List the benchmarks, or check a data folder (exit code 1 where something is wrong)."""
    from testdg.cli.listing import check_data, list_benchmarks

    if check is None:
        list_benchmarks(json)
    elif not check_data(check, json):
        raise typer.Exit(1)


@app.command()
def corrupt(
    data: Annotated[Path, typer.Option(help="Folder of the clean data; photographs in its frost/ are used.")],
    out: Annotated[Path, typer.Option(help="Parent of the new folder (CIFAR-10-C, CIFAR-100-C or ImageNet-C).")],
    benchmark: Annotated[str, typer.Option(help="cifar10-c, cifar100-c, or imagenet-c for pictures.")] = "cifar10-c",
    corruptions: Annotated[str | None, typer.Option(help="Names, separated by commas; all 19 if left out.")] = None,
    severities: Annotated[
        str | None, typer.Option(help="Numbers, separated by commas; all five if left out. For imagenet-c only.")
    ] = None,
    images: Annotated[int | None, typer.Option(help="First clean images; all if left out.")] = None,
    seed: Annotated[int, typer.Option(help="Seed of the corruptions.")] = 0,
    jobs: Annotated[int, typer.Option(help="Processes that work at the same time.")] = 1,
    json: Json = False,
) -> None:
    """Write clean images under the common corruptions, in the layout of the published sets; resumable."""
    _prepare_torch(bf16=False)
    from testdg.cli.corrupt import corrupt_command, parse_plan

    plan = parse_plan(corruptions, severities, seed, jobs)
    corrupt_command(benchmark, data, out, images, plan, as_json=json)


@app.command()
def train(
    benchmark: Annotated[str, typer.Option(help="Benchmark; see `testdg benchmarks`.")],
    model: Annotated[
        str,
        typer.Option(
            help="Model to start from: a folder, a hub id, a CIFAR ResNet's .safetensors, or random weights: tiny, "
            "segformer-b0 to segformer-b5."
        ),
    ],
    out: Annotated[Path, typer.Option(help="Folder of the trained model; it appears when the model is complete.")],
    data: Annotated[Path | None, typer.Option(help="Folder of the benchmark's data.")] = None,
    epochs: Annotated[int | None, typer.Option(help="Passes over the training images (5; maps 300).")] = None,
    batch_size: Annotated[int | None, typer.Option(help="Images per step (128; maps 16).")] = None,
    learning_rate: Annotated[
        float | None, typer.Option(help="Highest learning rate of AdamW (1e-4; maps 1e-3).")
    ] = None,
    weight_decay: Annotated[float | None, typer.Option(help="Weight decay of AdamW (0.05).")] = None,
    smoothing: Annotated[float | None, typer.Option(help="Label smoothing (0).")] = None,
    image_size: Annotated[int | None, typer.Option(help="Side of a classifier's input; its own if left out.")] = None,
    images: Annotated[int | None, typer.Option(help="First training images; all if left out.")] = None,
    flip: Annotated[bool | None, typer.Option("--flip/--no-flip", help="Mirror every other image (yes).")] = None,
    colour: Annotated[
        float | None, typer.Option(help="Strength of the random colours, 0 to 1 (0.25; maps 0.5).")
    ] = None,
    head_rate: Annotated[
        float | None, typer.Option(help="Learning rate of the decoder over the encoder's (maps; 1).")
    ] = None,
    scale_from: Annotated[float | None, typer.Option(help="Smallest scale of a picture (maps; 0.5).")] = None,
    scale_to: Annotated[float | None, typer.Option(help="Largest scale of a picture (maps; 2).")] = None,
    balance: Annotated[float | None, typer.Option(help="Weight of rare classes, 0 for none, to 1 (maps; 0.3).")] = None,
    overlap: Annotated[float | None, typer.Option(help="Weight of the overlap loss (maps; 0.5).")] = None,
    precision: Annotated[str | None, typer.Option(help="fp32 or bf16 (fp32).")] = None,
    seed: Annotated[
        int | None, typer.Option(help="Seed of the random weights, the order and the augmentation (0).")
    ] = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or mps.")] = "auto",
    json: Json = False,
) -> None:
    """Train a source model on the clean images of a benchmark; resumable."""
    _prepare_torch(bf16=precision == "bf16")
    from testdg.cli.train import TrainRequest, train_command

    recipe = {
        "epochs": epochs,
        "batch_size": batch_size,
        "learning_rate": learning_rate,
        "weight_decay": weight_decay,
        "smoothing": smoothing,
        "image_size": image_size,
        "images": images,
        "flip": flip,
        "colour": colour,
        "head_rate": head_rate,
        "scale_from": scale_from,
        "scale_to": scale_to,
        "balance": balance,
        "overlap": overlap,
        "precision": precision,
        "seed": seed,
    }
    train_command(TrainRequest(benchmark, data, model, out, device, recipe), as_json=json)
