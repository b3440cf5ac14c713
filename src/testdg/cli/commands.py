"""All commands: their options and help texts. A command imports its code when it runs, because torch takes seconds."""

from pathlib import Path
from typing import Annotated

from typer import Argument, Context, Option

from testdg.cli import options as given
from testdg.cli.options import BenchOptions, RunChoices, prepare_torch, uses_ray, with_choices
from testdg.spec import CHOICES

DEFAULT_METHOD = "testdg_aligned"

# Streams of a user's own pictures


def adapt(
    frames: Annotated[
        str, Argument(metavar="FRAMES", help="Folder of pictures, list of paths, video, or - for paths on stdin.")
    ],
    model: Annotated[str, Option(help=given.MODEL_HELP)],
    out: Annotated[Path, Option(metavar="FOLDER", help="Folder of the predictions; an interrupted stream resumes.")],
    method: given.PictureMethod = None,
    source: Annotated[
        Path | None,
        Option(metavar="FOLDER", help="Clean pictures to align to; in class folders if the method needs labels."),
    ] = None,
    settings: given.Settings = None,
    guard: Annotated[bool, Option("--guard/--no-guard", help=CHOICES["guard"].help)] = True,
    classes: given.Classes = None,
    batch_size: Annotated[int | None, Option(min=1, help="Pictures per batch (32; segmentation: 1).")] = None,
    order: Annotated[str, Option(metavar="name|time", help="Order of the pictures of a folder.")] = "name",
    follow: Annotated[bool, Option("--follow", help="Wait for more pictures in the folder, until Ctrl-C.")] = False,
    idle: Annotated[
        float | None, Option(metavar="SECONDS", help="With --follow: end if no new picture arrives for so long.")
    ] = None,
    strict: Annotated[bool, Option("--strict", help="Stop at a picture that cannot be read.")] = False,
    load_state: Annotated[Path | None, Option(metavar="FOLDER", help="Start from a saved adapter.")] = None,
    save_state: Annotated[Path | None, Option(metavar="FOLDER", help="Save the adapter at the end.")] = None,
    export: Annotated[
        Path | None, Option(metavar="FOLDER", help="Write the adapted model as a model folder at the end.")
    ] = None,
    format: Annotated[
        str, Option(metavar="csv|parquet", help="parquet: a Parquet file next to the CSV (needs pyarrow).")
    ] = "csv",
    device: given.Device = "auto",
    engine: Annotated[
        str, Option(metavar="local|ray", help="ray: every subfolder of FRAMES is a stream, on a Ray cluster.")
    ] = "local",
    address: given.Address = None,
    cpus: given.Cpus = None,
    gpus: given.Gpus = None,
    json: given.Json = False,
) -> bool:
    """Predict your own pictures with your own model while it adapts to them; needs no labels."""
    pairs = settings or []
    prepare_torch(bf16=any("precision=bf16" in pair for pair in pairs))
    from testdg.cli.pictures import adapt_command, fleet_command
    from testdg.runs.adapt import Request
    from testdg.runs.session import PictureOptions
    from testdg.studies.grid import method_settings

    on_cluster = uses_ray(engine, address=address, cpus=cpus, gpus=gpus)
    chosen = PictureOptions(
        method=method, source=source, guard=guard, classes=classes, device=device, load_state=load_state
    )
    request = Request(
        frames=frames,
        model=model,
        out=out,
        options=chosen,
        settings=method_settings(method or DEFAULT_METHOD, pairs),
        batch_size=batch_size,
        order=order,
        follow=follow,
        idle=idle,
        strict=strict,
        save_state=save_state,
        export=export,
        format=format,
    )
    if on_cluster:
        return fleet_command(request, address, 1.0 if cpus is None else cpus, gpus, as_json=json)
    adapt_command(request, as_json=json)
    return True


def serve(
    model: Annotated[str | None, Option(help=given.MODEL_HELP)] = None,
    source: Annotated[Path | None, Option(metavar="FOLDER", help="Clean pictures to align to.")] = None,
    method: given.PictureMethod = None,
    settings: given.Settings = None,
    classes: given.Classes = None,
    host: Annotated[str, Option(help="Address; needs a token if other machines can reach it.")] = "127.0.0.1",
    port: Annotated[int, Option(min=1, max=65535, help="Port.")] = 8000,
    token_file: Annotated[
        Path | None, Option(metavar="FILE", help="File with the token; TESTDG_TOKEN if left out.")
    ] = None,
    out: Annotated[Path, Option(metavar="FOLDER", help="Folder of the saved streams, which resume from it.")] = Path(
        "serve"
    ),
    resident: Annotated[int, Option(min=1, help="Streams in memory; others wait on disk.")] = 8,
    demo: Annotated[
        bool, Option("--demo", help="Play the embedded stream; needs neither a model nor pictures.")
    ] = False,
    device: given.Device = "auto",
) -> None:
    """Serve a model that predicts at once and learns in the background, with a page to watch it."""
    pairs = settings or []
    prepare_torch(bf16=any("precision=bf16" in pair for pair in pairs))
    from testdg.cli.pictures import serve_command
    from testdg.runs.session import PictureOptions
    from testdg.studies.grid import method_settings

    chosen = PictureOptions(method=method, source=source, classes=classes, device=device)
    values = method_settings(method or DEFAULT_METHOD, pairs)
    serve_command(model, chosen, values, out, host, port, token_file, resident, demo=demo)


# Runs on benchmarks


@with_choices(several=False, benchmark="digits-c", method=DEFAULT_METHOD)
def run(
    chosen: RunChoices,
    out: Annotated[Path, Option(help="Parent of the run folders.")] = Path("runs"),
    track: given.Track = None,
    json: given.Json = False,
) -> None:
    """Adapt a model to a stream and show the error (or mIoU) on every domain, next to that of the source model."""
    precisions = (chosen.values.get("precision"), *(pair.partition("precision=")[2] for pair in chosen.pairs))
    prepare_torch(bf16="bf16" in precisions)
    from testdg.cli.run import run_command

    run_command(chosen, out, track, as_json=json)


@with_choices()
def bench(
    chosen: RunChoices,
    places: BenchOptions,
    grid: Annotated[
        Path | None, Argument(metavar="GRID.toml", help="Grid of runs; see docs/bench.md. Options override it.")
    ] = None,
    json: given.Json = False,
) -> bool:
    """Run methods x benchmarks x protocols x seeds and compare them with Source (exit code 1 if a run failed)."""
    prepare_torch(bf16=True)  # some of the runs may be
    from testdg.cli.bench import bench_command

    return bench_command(grid, chosen, places, as_json=json)


@with_choices("method", "tuned", several=False, benchmark="digits-c")
def tune(chosen: RunChoices, request: given.TuneOptions, places: BenchOptions, json: given.Json = False) -> bool:
    """Choose settings: try twelve configurations per method on the extra corruptions (exit code 1 if a run failed)."""
    prepare_torch(bf16=True)  # some of the runs may be
    from testdg.cli.tune import tune_command

    return tune_command(request, chosen, places, as_json=json)


@with_choices("method", "protocol", benchmark="digits-c")
def leaderboard(
    chosen: RunChoices, request: given.BoardOptions, places: BenchOptions, json: given.Json = False
) -> bool:
    """Run all methods on all streams and compare them: errors, worst case, cost (exit code 1 if a run failed)."""
    prepare_torch(bf16=True)  # some of the runs may be
    from testdg.cli.leaderboard import leaderboard_command

    return leaderboard_command(request, chosen, places, as_json=json)


@with_choices("method", "tuned")
def ablate(
    chosen: RunChoices,
    places: BenchOptions,
    name: Annotated[str, Argument(metavar="NAME|list", help="Ablation; `list` shows all.")] = "list",
    json: given.Json = False,
) -> bool:
    """Repeat an ablation of the paper with TestDG (exit code 1 if a run failed)."""
    prepare_torch(bf16=True)  # some of the runs may be
    from testdg.cli.bench import ablate_command

    return ablate_command(name, chosen, places, as_json=json)


@with_choices(method="testdg")
def analyze(chosen: RunChoices, request: given.AnalyzeOptions, json: given.Json = False) -> bool:
    """Analyse what adaptation does: numbers as JSON, and a figure (exit code 1 if a run failed)."""
    prepare_torch(bf16=True)  # some of the runs may be
    from testdg.cli.analyze import analyze_command

    return analyze_command(request, chosen, as_json=json)


def report(
    runs: Annotated[list[Path], Argument(metavar="RUNS", help="Run folders, or parents of them.")],
    out: Annotated[Path, Option(help="Folder of the report; an earlier report in it is overwritten.")] = Path("report"),
    title: Annotated[str | None, Option(help="Title of the page.")] = None,
    json: given.Json = False,
) -> None:
    """Make a page from run folders, with the tables as Markdown, LaTeX and CSV and the figures as files."""
    from testdg.cli.analyze import report_command

    report_command(runs, out, title, as_json=json)


# Methods, data and models


def methods(
    name: Annotated[str | None, Argument(help="Show one method's settings.")] = None, json: given.Json = False
) -> None:
    """List the methods, or the settings of one."""
    from testdg.cli.listing import list_methods, show_method

    if name is None:
        list_methods(json)
    else:
        show_method(name, json)


def check_method(
    name: Annotated[str, Argument(help="Method; your own is loaded with --plugin FILE.py.")],
    settings: given.Settings = None,
    json: given.Json = False,
) -> bool:
    """Check that a method follows the rules for all methods (exit code 1 if it breaks one)."""
    prepare_torch(bf16=True)
    from testdg.cli.prepare import check_command

    return check_command(name, settings or [], as_json=json)


def benchmarks(
    check: Annotated[
        str | None,
        Option(
            metavar="DIR",
            help="Show the contents and the problems of a data folder, or of several, separated by commas.",
        ),
    ] = None,
    json: given.Json = False,
) -> bool:
    """List the benchmarks, or check data folders (exit code 1 if there are problems)."""
    from testdg.cli.listing import check_data, list_benchmarks

    if check is None:
        list_benchmarks(json)
        return True
    folders = [check] if Path(check).is_dir() else check.split(",")  # a name may have a comma
    return check_data([Path(folder.strip()) for folder in folders], json)


def corrupt(
    data: Annotated[Path, Option(help="Folder of the clean data, with photographs of frost in frost/.")],
    out: Annotated[Path, Option(help="Parent of the new folder, which is named after the published set (CIFAR-10-C).")],
    benchmark: Annotated[str, Option(help="Which set to make; see `testdg benchmarks`.")] = "cifar10-c",
    corruptions: Annotated[str | None, Option(help="Names, separated by commas; all 19 if left out.")] = None,
    severities: Annotated[
        str | None, Option(help="Numbers from 1 to 5, separated by commas; all if left out. For picture folders only.")
    ] = None,
    images: Annotated[int | None, Option(help="Number of clean images, from the first on; all if left out.")] = None,
    seed: Annotated[int, Option(help="Seed of the corruptions.")] = 0,
    jobs: Annotated[int, Option(help="Number of parallel processes.")] = 1,
    json: given.Json = False,
) -> None:
    """Apply the common corruptions to clean images and write them in the layout of the published sets; resumable."""
    prepare_torch(bf16=False)
    from testdg.cli.prepare import corrupt_command, parse_options

    options = parse_options(corruptions, severities, seed, jobs)
    corrupt_command(benchmark, data, out, images, options, as_json=json)


_NO_RECIPE = ("benchmark", "model", "out", "data", "subset", "device", "json")
"""Options of `train` that are not part of the recipe."""


def train(
    ctx: Context,
    benchmark: Annotated[str, Option(help="Benchmark; see `testdg benchmarks`.")],
    model: Annotated[
        str,
        Option(
            help="Model to start from: a folder, a hub id, timm:NAME, a CIFAR ResNet's .safetensors, or random "
            "weights: tiny, segformer-b0 to segformer-b5."
        ),
    ],
    out: Annotated[Path, Option(help="Folder of the trained model; written when the training is complete.")],
    data: Annotated[Path | None, Option(help="Folder of the benchmark's data.")] = None,
    subset: given.Subset = None,
    epochs: Annotated[int | None, Option(help="Passes over the training images (5; maps 300).")] = None,
    batch_size: Annotated[int | None, Option(help="Images per step (128; maps 16).")] = None,
    learning_rate: Annotated[float | None, Option(help="Highest learning rate of AdamW (1e-4; maps 1e-3).")] = None,
    weight_decay: Annotated[float | None, Option(help="Weight decay of AdamW (0.05).")] = None,
    smoothing: Annotated[float | None, Option(help="Label smoothing (0).")] = None,
    image_size: Annotated[int | None, Option(help="Side of a classifier's input; its own if left out.")] = None,
    images: Annotated[int | None, Option(help="Use only the first training images; all if left out.")] = None,
    flip: Annotated[bool | None, Option("--flip/--no-flip", help="Mirror every other image (yes).")] = None,
    colour: Annotated[float | None, Option(help="Strength of the random colours, 0 to 1 (0.25; maps 0.5).")] = None,
    head_rate: Annotated[
        float | None, Option(help="Ratio of the decoder's learning rate to the encoder's (maps; 1).")
    ] = None,
    scale_from: Annotated[float | None, Option(help="Smallest scale of a picture (maps; 0.5).")] = None,
    scale_to: Annotated[float | None, Option(help="Largest scale of a picture (maps; 2).")] = None,
    balance: Annotated[float | None, Option(help="Weight of rare classes, 0 (none) to 1 (maps; 0.3).")] = None,
    overlap: Annotated[float | None, Option(help="Weight of the overlap loss (maps; 0.5).")] = None,
    precision: Annotated[str | None, Option(help="fp32 or bf16 (fp32).")] = None,
    seed: Annotated[int | None, Option(help="Seed of the random weights, the order and the augmentation (0).")] = None,
    device: Annotated[str, Option(help="auto, cpu, cuda or mps.")] = "auto",
    json: given.Json = False,
) -> None:
    """Train a source model on the clean images of a benchmark; resumable."""
    prepare_torch(bf16=precision == "bf16")
    from testdg.cli.prepare import train_command

    recipe = {name: value for name, value in ctx.params.items() if name not in _NO_RECIPE and value is not None}
    train_command(benchmark, model, out, recipe, as_json=json, data=data, subset=subset, device=device)


def convert(
    file: Annotated[Path, Argument(metavar="FILE", help="A .pth or .pt file of tensors, or .safetensors.")],
    out: Annotated[Path, Option(help="Folder of the model.")],
    timm: Annotated[str | None, Option(metavar="NAME", help="Name of its network in timm.")] = None,
    like: Annotated[
        str | None, Option(metavar="FOLDER", help="Model with the same kind of network: a folder or hub id.")
    ] = None,
    json: given.Json = False,
) -> None:
    """Convert a published checkpoint to a model folder, and list tensors that do not fit. No code in it is executed."""
    from testdg.cli.prepare import convert_command

    convert_command(file, out, timm, like, as_json=json)
