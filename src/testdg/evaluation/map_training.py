"""Training of the embedded segmentation benchmark's source model: a small SegFormer, on clear weather."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Generator, Tensor

from testdg.data.augmentation import jitter_colour
from testdg.data.benchmarks import Benchmark
from testdg.data.segmentation.classes import IGNORED
from testdg.data.stream import Samples, to_float
from testdg.errors import UserError
from testdg.fitting import fit
from testdg.models import Preprocessing, VisionModel, load_model
from testdg.models.tiny import tiny_segformer

_AT_ONCE = 1 << 24  # labels that are counted together


@dataclass(frozen=True)
class MapRecipe:
    """Everything that the trained weights depend on, besides the scenes."""

    network: ClassVar[str] = "tiny-segformer"

    version: int = 1
    epochs: int = 28
    batch_size: int = 8
    learning_rate: float = 3e-3
    weight_decay: float = 0.01
    balance: float = 0.3
    """Classes weigh by their share of the pixels to the power of minus this."""
    zoom: float = 0.3
    colour: float = 0.5
    mean: float = 0.5
    std: float = 0.25
    seed: int = 0


def train_maps(benchmark: Benchmark, recipe: MapRecipe, progress: Callable[[int, int], None], name: str) -> VisionModel:
    """Train a small SegFormer on the clean training scenes."""
    samples = benchmark.train()
    classes = len(benchmark.classes)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(recipe.seed)
        network = tiny_segformer(classes)
    preprocessing = Preprocessing(mean=(recipe.mean,) * 3, std=(recipe.std,) * 3)
    model = load_model(network, preprocessing=preprocessing, name=name).train()
    weights = class_weights(samples.labels, classes, recipe.balance)
    steps = recipe.epochs * (len(samples) // recipe.batch_size)

    def step(images: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(model(images).logits, labels, weight=weights, ignore_index=IGNORED)

    fit(
        step,
        torch.optim.AdamW(model.parameters(), recipe.learning_rate, weight_decay=recipe.weight_decay),
        _batches(samples, recipe),
        steps=steps,
        clip=1.0,
        after=lambda done, _: progress(done, steps),
    )
    return model.eval()


def class_weights(labels: Tensor, classes: int, power: float) -> Tensor:
    """Weights of the classes, larger for rare ones, whose mean over the pixels is one."""
    parts = torch.split(labels.flatten(), _AT_ONCE)
    counts = torch.stack([torch.bincount(part, minlength=IGNORED + 1) for part in parts]).sum(0)[:classes]
    if not counts.sum():
        raise UserError("no pixel of the label maps has a class: all are ignored")
    shares = counts / counts.sum()
    weights = shares.clamp(min=1 / counts.sum()) ** -power  # a class that never occurs has a finite weight, too
    return weights / (weights * shares).sum()


def _batches(samples: Samples, recipe: MapRecipe) -> Iterator[tuple[Tensor, Tensor]]:
    """Random views of every batch; a short last batch of an epoch is left out."""
    generator = torch.Generator().manual_seed(recipe.seed)
    whole = len(samples) - len(samples) % recipe.batch_size
    for _ in range(recipe.epochs):
        order = torch.randperm(len(samples), generator=generator)[:whole]
        for chosen in torch.split(order, recipe.batch_size):
            images, labels = to_float(samples.images[chosen]), samples.labels[chosen].long()
            images, labels = random_view(images, labels, (1, 1 + recipe.zoom), generator)
            yield jitter_colour(images, recipe.colour, generator), labels


def random_view(
    images: Tensor, labels: Tensor, scales: tuple[float, float], generator: Generator, *, mirror: bool = True
) -> tuple[Tensor, Tensor]:
    """Enlarge images by a factor between two, cut them to their size, mirror every other one; labels go along.

    What is beyond an image that got smaller repeats its border, and is ignored.
    """
    low, high = scales
    across, down, size, side = torch.rand(4, len(images), generator=generator, device=images.device)
    size = 1 / (low + (high - low) * size)  # of the part that is seen
    flip = torch.where(side < 0.5, -1.0, 1.0) if mirror else torch.ones_like(side)
    zero, x, y = torch.zeros_like(size), (2 * across - 1) * (1 - size), (2 * down - 1) * (1 - size)
    maps = torch.stack([torch.stack([size * flip, zero, x], 1), torch.stack([zero, size, y], 1)], 1)  # (N, 2, 3)
    grid = F.affine_grid(maps, list(images.shape), align_corners=False)
    view = F.grid_sample(images, grid, padding_mode="border", align_corners=False)
    found = F.grid_sample(labels[:, None].float(), grid, "nearest", "border", align_corners=False)
    return view, torch.where((grid.abs() > 1).any(-1), IGNORED, found[:, 0].long())
