"""Training of an embedded benchmark's source model, on its clean images, once."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import ClassVar

import torch
import torch.nn.functional as F
from safetensors import SafetensorError
from torch import Tensor

from testdg.data.benchmarks import Benchmark
from testdg.data.stream import to_float
from testdg.errors import UserError
from testdg.evaluation.map_training import MapRecipe, train_maps
from testdg.fitting import fit
from testdg.models import Preprocessing, TinyViT, VisionModel, load_model


@dataclass(frozen=True)
class Recipe:
    """Everything that the trained weights depend on, besides the images."""

    network: ClassVar[str] = "tiny-vit"

    version: int = 2
    size: int = 32
    patch: int = 8
    width: int = 64
    depth: int = 4
    heads: int = 4
    epochs: int = 40
    batch_size: int = 100
    learning_rate: float = 2e-3
    smoothing: float = 0.1
    degrees: float = 15.0
    zoom: float = 0.15
    shift: float = 0.1
    mean: float = 0.5
    std: float = 0.5
    seed: int = 0


def cache_folder() -> Path:
    """Where trained source models are kept: $TESTDG_CACHE, or the user's cache folder."""
    if chosen := os.environ.get("TESTDG_CACHE"):
        return Path(chosen)
    base = os.environ.get("LOCALAPPDATA") or os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "testdg"


def default_recipe(benchmark: Benchmark) -> Recipe | MapRecipe:
    """How the source model of a benchmark is trained."""
    return MapRecipe() if benchmark.task == "segmentation" else Recipe()


def trained_model(
    benchmark: Benchmark, recipe: Recipe | MapRecipe, progress: Callable[[int, int], None]
) -> VisionModel:
    """Give the source model of a benchmark, from the cache or freshly trained."""
    key = hashlib.blake2b(json.dumps([benchmark.name, asdict(recipe)]).encode(), digest_size=4).hexdigest()
    name = f"{benchmark.name}-{recipe.network}-{key}"
    folder = cache_folder() / name
    if not folder.exists():
        with _kept(folder) as fresh:
            if isinstance(recipe, MapRecipe):
                train_maps(benchmark, recipe, progress, name).save(fresh)
            else:
                train(benchmark, recipe, progress, name).save(fresh)
    try:
        return load_model(folder)
    except UserError as error:
        raise UserError(f"{error}; delete {folder} to train it again") from error


@contextmanager
def _kept(folder: Path) -> Iterator[Path]:
    """Give a place beside a folder, made sure of before the work, and rename it after; whoever comes first wins."""
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=folder.name + "-", dir=folder.parent) as place:
            yield Path(place) / "model"
            if not folder.exists():
                (Path(place) / "model").rename(folder)
    except (OSError, SafetensorError) as error:
        if not folder.exists():
            reason = getattr(error, "strerror", None) or error
            remedy = "point TESTDG_CACHE to a folder with space that you may write"
            raise UserError(f"cannot keep the source model in {folder.parent}: {reason}; {remedy}") from error


def train(benchmark: Benchmark, recipe: Recipe, progress: Callable[[int, int], None], name: str) -> VisionModel:
    """Train a small vision transformer on the clean training images."""
    samples = benchmark.train()
    images, labels = to_float(samples.images), samples.labels
    generator = torch.Generator().manual_seed(recipe.seed)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(recipe.seed)
        shape = {key: getattr(recipe, key) for key in ("size", "patch", "width", "depth", "heads")}
        network = TinyViT(len(benchmark.classes), **shape)
    preprocessing = Preprocessing((recipe.size,) * 2, mean=(recipe.mean,) * 3, std=(recipe.std,) * 3)
    model = VisionModel(network, "head", preprocessing, name)
    order = _batches(len(images), recipe, generator)

    def step(images: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(model(images).logits, labels, label_smoothing=recipe.smoothing)

    fit(
        step,
        torch.optim.Adam(model.parameters(), recipe.learning_rate),
        ((augment(images[chosen], recipe, generator), labels[chosen]) for chosen in order),
        steps=len(order),
        after=lambda done, _: progress(done, len(order)),
    )
    return model.eval()


def _batches(images: int, recipe: Recipe, generator: torch.Generator) -> list[Tensor]:
    """Indices of every batch; a short last batch of an epoch is left out."""
    whole = images - images % recipe.batch_size
    epochs = (torch.randperm(images, generator=generator)[:whole] for _ in range(recipe.epochs))
    return [chosen for order in epochs for chosen in torch.split(order, recipe.batch_size)]


def augment(images: Tensor, recipe: Recipe, generator: torch.Generator) -> Tensor:
    """Turn, zoom and shift each image a little."""
    turn, zoom, across, down = (torch.rand(4, len(images), generator=generator) * 2 - 1).unbind()
    angle, scale = turn * torch.pi * recipe.degrees / 180, 1 / (1 + zoom * recipe.zoom)
    cos, sin = scale * angle.cos(), scale * angle.sin()
    shift_x, shift_y = 2 * recipe.shift * across, 2 * recipe.shift * down  # the grid is 2 wide
    maps = torch.stack([torch.stack([cos, -sin, shift_x], 1), torch.stack([sin, cos, shift_y], 1)], 1)  # (N, 2, 3)
    grid = F.affine_grid(maps, list(images.shape), align_corners=False)
    return F.grid_sample(images, grid, padding_mode="border", align_corners=False)
