"""Commands for what experiments need, methods, data and models: their options, and nothing else."""

from pathlib import Path
from typing import Annotated

from typer import Argument, Context, Option

from testdg.cli import options as given
from testdg.cli.options import prepare_torch


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
    name: Annotated[str, Argument(help="Method; one of your own comes with --plugin FILE.py.")],
    settings: given.Settings = None,
    json: given.Json = False,
) -> bool:
    """Hold a method against the laws that every method keeps (exit code 1 where one is broken)."""
    prepare_torch(bf16=True)
    from testdg.cli.check_method import check_command

    return check_command(name, settings or [], as_json=json)


def benchmarks(
    check: Annotated[
        str | None,
        Option(metavar="DIR", help="Say what a data folder, or several with commas, holds, lacks and has wrong."),
    ] = None,
    json: given.Json = False,
) -> bool:
    """List the benchmarks, or check data folders (exit code 1 where something is wrong)."""
    from testdg.cli.listing import check_data, list_benchmarks

    if check is None:
        list_benchmarks(json)
        return True
    folders = [check] if Path(check).is_dir() else check.split(",")  # a name may have a comma
    return check_data([Path(folder.strip()) for folder in folders], json)


def corrupt(
    data: Annotated[Path, Option(help="Folder of the clean data; photographs in its frost/ are used.")],
    out: Annotated[Path, Option(help="Parent of the new folder, which is called as the published set (CIFAR-10-C).")],
    benchmark: Annotated[str, Option(help="Which set to make; see `testdg benchmarks`.")] = "cifar10-c",
    corruptions: Annotated[str | None, Option(help="Names, separated by commas; all 19 if left out.")] = None,
    severities: Annotated[
        str | None, Option(help="Numbers, separated by commas; all five if left out. For pictures only.")
    ] = None,
    images: Annotated[int | None, Option(help="First clean images; all if left out.")] = None,
    seed: Annotated[int, Option(help="Seed of the corruptions.")] = 0,
    jobs: Annotated[int, Option(help="Processes that work at the same time.")] = 1,
    json: given.Json = False,
) -> None:
    """Write clean images under the common corruptions, in the layout of the published sets; resumable."""
    prepare_torch(bf16=False)
    from testdg.cli.corrupt import corrupt_command, parse_options

    options = parse_options(corruptions, severities, seed, jobs)
    corrupt_command(benchmark, data, out, images, options, as_json=json)


_NO_RECIPE = ("benchmark", "model", "out", "data", "subset", "device", "json")
"""Options of `train` that are no values of its recipe; all others are."""


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
    out: Annotated[Path, Option(help="Folder of the trained model; it appears when the model is complete.")],
    data: Annotated[Path | None, Option(help="Folder of the benchmark's data.")] = None,
    subset: given.Subset = None,
    epochs: Annotated[int | None, Option(help="Passes over the training images (5; maps 300).")] = None,
    batch_size: Annotated[int | None, Option(help="Images per step (128; maps 16).")] = None,
    learning_rate: Annotated[float | None, Option(help="Highest learning rate of AdamW (1e-4; maps 1e-3).")] = None,
    weight_decay: Annotated[float | None, Option(help="Weight decay of AdamW (0.05).")] = None,
    smoothing: Annotated[float | None, Option(help="Label smoothing (0).")] = None,
    image_size: Annotated[int | None, Option(help="Side of a classifier's input; its own if left out.")] = None,
    images: Annotated[int | None, Option(help="First training images; all if left out.")] = None,
    flip: Annotated[bool | None, Option("--flip/--no-flip", help="Mirror every other image (yes).")] = None,
    colour: Annotated[float | None, Option(help="Strength of the random colours, 0 to 1 (0.25; maps 0.5).")] = None,
    head_rate: Annotated[
        float | None, Option(help="Learning rate of the decoder over the encoder's (maps; 1).")
    ] = None,
    scale_from: Annotated[float | None, Option(help="Smallest scale of a picture (maps; 0.5).")] = None,
    scale_to: Annotated[float | None, Option(help="Largest scale of a picture (maps; 2).")] = None,
    balance: Annotated[float | None, Option(help="Weight of rare classes, 0 for none, to 1 (maps; 0.3).")] = None,
    overlap: Annotated[float | None, Option(help="Weight of the overlap loss (maps; 0.5).")] = None,
    precision: Annotated[str | None, Option(help="fp32 or bf16 (fp32).")] = None,
    seed: Annotated[int | None, Option(help="Seed of the random weights, the order and the augmentation (0).")] = None,
    device: Annotated[str, Option(help="auto, cpu, cuda or mps.")] = "auto",
    json: given.Json = False,
) -> None:
    """Train a source model on the clean images of a benchmark; resumable."""
    prepare_torch(bf16=precision == "bf16")
    from testdg.cli.train import train_command

    recipe = {name: value for name, value in ctx.params.items() if name not in _NO_RECIPE and value is not None}
    train_command(benchmark, model, out, recipe, as_json=json, data=data, subset=subset, device=device)


def convert(
    file: Annotated[Path, Argument(metavar="FILE", help="A .pth or .pt file of tensors, or .safetensors.")],
    out: Annotated[Path, Option(help="Folder of the model.")],
    timm: Annotated[str | None, Option(metavar="NAME", help="Its network is this one of timm.")] = None,
    like: Annotated[
        str | None, Option(metavar="FOLDER", help="Its network is of the kind of this model, a folder or hub id.")
    ] = None,
    json: given.Json = False,
) -> None:
    """Write a published checkpoint as a model folder, and say what did not fit; no code in it is executed."""
    from testdg.cli.convert import convert_command

    convert_command(file, out, timm, like, as_json=json)
