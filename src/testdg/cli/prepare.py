"""`testdg corrupt`, `train`, `convert` and `check-method`: data sets, source models and methods."""

import json
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from torch import nn

from testdg.cli.display import Bar, quieten
from testdg.data.benchmarks import find_benchmark, load_benchmark
from testdg.data.generate import ALL, CorruptOptions, write_set
from testdg.data.picture_sets import MANIFEST
from testdg.errors import UserError
from testdg.methods import Adapter, find_method
from testdg.models import Preprocessing, TinyCNN, TinyViT, load_model
from testdg.models.loading import BRANCHES, convert
from testdg.models.segformer import SEGFORMERS, tiny_segformer
from testdg.runs.training.fine_tune import fine_tune
from testdg.runs.training.recipe import make_recipe
from testdg.spec import split
from testdg.studies.grid import method_settings
from testdg.testing import check_adapter

NAMED = 5  # tensors without a place in a network that are named


def corrupt_command(
    benchmark: str, data: Path, out: Path, images: int | None, options: CorruptOptions, *, as_json: bool
) -> None:
    """Write the data set and print its folder."""
    console = Console(stderr=as_json, highlight=False, soft_wrap=True)
    with Bar(console) as bar:
        folder = write_set(benchmark, data, out, images, options, bar.update)
    manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
    if as_json:
        print(json.dumps(manifest, indent=2))
        return
    made = f"{len(manifest['corruptions'])} corruptions of {manifest['images']} images"
    how = f"severity {', '.join(map(str, manifest['severities']))}; seed {options.seed}, frost {manifest['frost']}"
    console.print(f"{folder}: {made} at {how}", markup=False)


def parse_options(corruptions: str | None, severities: str | None, seed: int, jobs: int) -> CorruptOptions:
    """The options of comma-separated texts."""
    names = ALL if corruptions is None else tuple(split("corruptions", corruptions))
    levels = CorruptOptions.severities
    if severities is not None:
        parts = split("severities", severities)
        if wrong := [part for part in parts if not part.removeprefix("-").isdecimal()]:
            raise UserError(f"severity must be 1 to 5; got {wrong[0]!r}", code="wrong-severity")
        levels = tuple(map(int, parts))
    return CorruptOptions(names, levels, seed, jobs)


def train_command(
    benchmark: str, model: str, out: Path, values: dict[str, Any], *, as_json: bool, device: str, **options: Any
) -> None:
    """Train the model and print its score on clean images; `values` are those of the recipe that were chosen."""
    quieten([None if model in ("tiny", *SEGFORMERS) else model])
    console = Console(stderr=as_json, highlight=False, soft_wrap=True)

    def on_progress(done: int, steps: int, loss: float, error: float) -> None:
        bar.update(f"step {done} of {steps}, loss {loss:.3f}, error {error:.1f} %", done, steps)

    with warnings.catch_warnings(), Bar(console) as bar:
        warnings.showwarning = lambda message, *_, **__: console.print(f"note   {message}", markup=False)
        recipe = make_recipe(find_benchmark(benchmark).task, values)
        about = fine_tune(
            load_benchmark(benchmark, **options), model, out, recipe, device=device, on_progress=on_progress
        )
    if as_json:
        print(json.dumps(about, indent=2))
        return
    images = f"{about['test_images']} clean test images of {about['benchmark']}"
    console.print(f"model  {out} ({about['seconds']:.0f} s)", markup=False)
    key, title = ("clean_miou", "mIoU ") if "clean_miou" in about else ("clean_error", "error")
    console.print(f"{title}  {about[key]:.2f} % on {images}", markup=False)


def convert_command(file: Path, out: Path, timm: str | None, like: str | None, *, as_json: bool) -> None:
    """Convert the file, and print the tensors that do not fit."""
    quieten([like])
    model, fitted = convert(file, out, timm=timm, like=like)
    branches, unknown = len(fitted.branches), fitted.unknown
    if as_json:
        about = {"classes": model.classes, "fingerprint": model.fingerprint(), "branches": branches}
        print(json.dumps({"model": str(out), **about, "unknown": unknown}, indent=2))
        return
    console = Console(soft_wrap=True, highlight=False, markup=False)
    console.print(f"model  {out} ({model.classes} classes, {model.fingerprint()})")
    if branches:
        console.print(
            f"note   {branches} tensors of branches parallel to layers are in {BRANCHES}; the model does not use them"
        )
    if unknown:
        more = f" and {len(unknown) - NAMED} more" if len(unknown) > NAMED else ""
        console.print(f"note   left out, as the network has no such tensors: {', '.join(unknown[:NAMED])}{more}")
    if timm is not None:
        console.print("note   size, mean and deviation are timm's: check preprocessor_config.json against the training")


NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "vision transformer": lambda: TinyViT(width=32, depth=2, patch=8),
    "BatchNorm network": lambda: TinyCNN(width=8),
    "SegFormer": lambda: tiny_segformer(5),
}


def check_command(name: str, pairs: Sequence[str], *, as_json: bool) -> bool:
    """Check a method on every small network that it adapts; False if it breaks a law."""
    quieten([None])
    method = find_method(name)
    settings = method_settings(name, pairs)
    outcomes = [{"network": label, **_check(method, settings, make)} for label, make in NETWORKS.items()]
    if as_json:
        print(json.dumps(outcomes, indent=2))
    else:
        console = Console(highlight=False, markup=False, soft_wrap=True)
        for one in outcomes:
            result = f"{len(one['checks'])} laws hold"
            if one["broken"] or one["refused"]:
                result = f"broken: {one['broken']}" if one["broken"] else f"not adapted: {one['refused']}"
            console.print(f"{one['network']:<20}{result}")
    if not any(one["checks"] or one["broken"] for one in outcomes):
        message = f"{name} adapts none of the small networks: check it from Python with testdg.testing"
        raise UserError(message, code="unsuitable-model")
    return not any(one["broken"] for one in outcomes)


def _check(method: type[Adapter], settings: dict[str, Any], make: Callable[[], nn.Module]) -> dict[str, Any]:
    """The laws that hold on one network, the law that is broken, or the reason why the method does not adapt it."""
    half = (0.5,) * 3
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = load_model(make(), preprocessing=Preprocessing((32, 32), mean=half, std=half))
    try:
        method(model, **settings)
    except UserError as error:
        return {"checks": [], "refused": str(error), "broken": None}
    try:
        checks = check_adapter(lambda **own: method(model, **{**settings, **own}))
        return {"checks": checks, "refused": None, "broken": None}
    except AssertionError as error:
        return {"checks": [], "refused": None, "broken": str(error)}
