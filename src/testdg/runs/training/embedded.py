"""The source models of embedded benchmarks: small networks, trained once on clean images, and cached."""

import json
import tempfile
from abc import abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import ClassVar

import torch
import torch.nn.functional as F
from safetensors import SafetensorError
from torch import Generator, Tensor

from testdg.core.fitting import fit
from testdg.data.benchmarks import Benchmark
from testdg.data.segmentation.classes import IGNORED
from testdg.data.stream import LabelledImages, to_float
from testdg.errors import UserError
from testdg.files import cache_folder, checksum
from testdg.models import Preprocessing, TinyViT, VisionModel, load_model
from testdg.models.segformer import tiny_segformer
from testdg.runs.training.losses import class_weights
from testdg.runs.training.recipe import Loss, Recipe
from testdg.runs.training.views import map_view, turned_view

Progress = Callable[[int, int], None]
"""Called with the steps that are done, and all of them."""


class EmbeddedRecipe(Recipe):
    """What the recipes of embedded models have in common; a hash of their fields, in order, names a cached model."""

    network: ClassVar[str]
    clip: ClassVar[float | None] = None
    orders_first: ClassVar[bool] = False
    """Draw the orders of all epochs before the first view."""

    weight_decay: float

    @abstractmethod
    def start(self, classes: int, name: str) -> VisionModel:
        """The model with random weights, from torch's global generator."""


@dataclass(frozen=True)
class EmbeddedClasses(EmbeddedRecipe):
    """For classification: a small vision transformer."""

    task, network, weight_decay, orders_first = "classification", "tiny-vit", 0.0, True

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

    def start(self, classes: int, name: str) -> VisionModel:
        network = TinyViT(classes, self.size, self.patch, self.width, self.depth, self.heads)
        preprocessing = Preprocessing((self.size,) * 2, mean=(self.mean,) * 3, std=(self.std,) * 3)
        return VisionModel(network, "head", preprocessing, name)

    def view(self, images: Tensor, labels: Tensor, generator: Generator) -> tuple[Tensor, Tensor]:
        return turned_view(images, generator, degrees=self.degrees, zoom=self.zoom, shift=self.shift), labels


@dataclass(frozen=True)
class EmbeddedMaps(EmbeddedRecipe):
    """For segmentation: a small SegFormer."""

    task, network, smoothing, clip = "segmentation", "tiny-segformer", 0.0, 1.0

    version: int = 1
    epochs: int = 28
    batch_size: int = 8
    learning_rate: float = 3e-3
    weight_decay: float = 0.01
    balance: float = 0.3
    zoom: float = 0.3
    colour: float = 0.5
    mean: float = 0.5
    std: float = 0.25
    seed: int = 0

    def start(self, classes: int, name: str) -> VisionModel:
        preprocessing = Preprocessing(mean=(self.mean,) * 3, std=(self.std,) * 3)
        return load_model(tiny_segformer(classes), preprocessing=preprocessing, name=name)

    def view(self, images: Tensor, labels: Tensor, generator: Generator) -> tuple[Tensor, Tensor]:
        return map_view(images, labels, (1, 1 + self.zoom), generator, colour=self.colour)

    def loss(self, labels: Tensor, classes: int, device: torch.device) -> Loss:
        weights = class_weights(labels, classes, self.balance).to(device)
        return partial(F.cross_entropy, weight=weights, ignore_index=IGNORED)


def default_recipe(benchmark: Benchmark) -> EmbeddedRecipe:
    """How the source model of a benchmark is trained."""
    return EmbeddedMaps() if benchmark.task == "segmentation" else EmbeddedClasses()


def trained_model(benchmark: Benchmark, recipe: EmbeddedRecipe, progress: Progress) -> VisionModel:
    """The source model of a benchmark, from the cache or newly trained."""
    key = checksum(json.dumps([benchmark.name, vars(recipe)]).encode(), 4)
    folder = cache_folder() / f"{benchmark.name}-{recipe.network}-{key}"
    if not folder.exists():
        _train_into(folder, benchmark, recipe, progress)
    try:
        return load_model(folder)
    except UserError as error:
        raise UserError(f"{error}; delete {folder} to train it again", code="damaged-model") from error


def _train_into(folder: Path, benchmark: Benchmark, recipe: EmbeddedRecipe, progress: Progress) -> None:
    """Train a model next to its folder in the cache, and rename it, unless another process was faster."""
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=folder.name + "-", dir=folder.parent) as place:
            train(benchmark, recipe, progress, folder.name).save(Path(place) / "model")
            if not folder.exists():
                (Path(place) / "model").rename(folder)
    except (OSError, SafetensorError) as error:
        if not folder.exists():
            reason = getattr(error, "strerror", None) or error
            remedy = "point TESTDG_CACHE to a folder with space that you may write"
            message = f"cannot store the source model in {folder.parent}: {reason}; {remedy}"
            raise UserError(message, code="cannot-write") from error


def train(benchmark: Benchmark, recipe: EmbeddedRecipe, progress: Progress, name: str) -> VisionModel:
    samples, classes = benchmark.train(), len(benchmark.classes)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(recipe.seed)
        model = recipe.start(classes, name).train()
    loss = recipe.loss(samples.labels, classes, model.device)
    steps = recipe.epochs * (len(samples) // recipe.batch_size)
    fit(
        lambda images, labels: loss(model(images).logits, labels),
        torch.optim.AdamW(model.parameters(), recipe.learning_rate, weight_decay=recipe.weight_decay),
        _batches(samples, recipe),
        steps=steps,
        clip=recipe.clip,
        after=lambda done, _: progress(done, steps),
    )
    return model.eval()


def _batches(samples: LabelledImages, recipe: EmbeddedRecipe) -> Iterator[tuple[Tensor, Tensor]]:
    """Random views of every batch; a short last batch of an epoch is left out."""
    generator = torch.Generator().manual_seed(recipe.seed)
    whole = len(samples) - len(samples) % recipe.batch_size
    orders = (torch.randperm(len(samples), generator=generator)[:whole] for _ in range(recipe.epochs))
    for order in list(orders) if recipe.orders_first else orders:
        for chosen in torch.split(order, recipe.batch_size):
            yield recipe.view(to_float(samples.images[chosen]), samples.labels[chosen].long(), generator)
