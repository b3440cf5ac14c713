"""Recipes: everything that trained weights depend on, besides the starting model and the images.

A recipe holds values, and says what differs between trainings that share a loop: the view of a batch and its loss.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from functools import partial
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Generator, Tensor, nn

from testdg.errors import UserError
from testdg.models import VisionModel
from testdg.runs.training.losses import class_weights, map_loss
from testdg.runs.training.views import class_view, map_view

Loss = Callable[[Tensor, Tensor], Tensor]
"""Gives the loss of logits and labels."""

_WHOLE = ("epochs", "batch_size", "image_size", "images")
_SHARES = ("weight_decay", "smoothing", "colour", "balance")
_AMOUNTS = ("learning_rate", "head_rate", "overlap")


class Recipe(ABC):
    """What the recipes of all tasks have in common, of embedded models and of fine-tuned ones."""

    task: ClassVar[str]

    epochs: int
    batch_size: int
    learning_rate: float
    smoothing: float
    seed: int

    @abstractmethod
    def view(self, images: Tensor, labels: Tensor, generator: Generator) -> tuple[Tensor, Tensor]:
        """Augment images in [0, 1], and their labels where they must go along."""

    def loss(self, labels: Tensor, classes: int, device: torch.device) -> Loss:
        """The loss of a training whose labels are all these: cross entropy, where a task has no other."""
        return partial(F.cross_entropy, label_smoothing=self.smoothing)


@dataclass(frozen=True)
class Tuning(Recipe):
    """What the recipes of `fine_tune` have in common."""

    epochs: int
    batch_size: int
    learning_rate: float
    weight_decay: float = 0.05
    smoothing: float = 0.0
    images: int | None = None
    """First training images; None for all."""
    flip: bool = True
    colour: float = 0.25
    precision: str = "fp32"
    seed: int = 0

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if name in _WHOLE and value is not None and value < 1:
                raise UserError(f"{name} must be at least 1; got {value}", code="wrong-value")
            if name in _AMOUNTS and not 0 <= value < math.inf:
                raise UserError(f"{name} must be at least 0 and finite; got {value}", code="wrong-value")
            if name in _SHARES and not 0 <= value <= 1:
                raise UserError(f"{name} must be in [0, 1]; got {value}", code="wrong-value")
        if self.precision not in ("fp32", "bf16"):
            raise UserError(f"precision must be fp32 or bf16; got {self.precision!r}", code="wrong-value")
        if not 0 <= self.seed < 2**32:
            raise UserError(f"seed must be in [0, 4294967295]; got {self.seed}", code="wrong-value")

    def groups(self, model: VisionModel) -> list[dict[str, Any]]:
        """What the optimiser learns, and how."""
        return decayed(model, self.weight_decay)


@dataclass(frozen=True)
class ClassTuning(Tuning):
    """For classification; the defaults fine-tune a pre-trained transformer."""

    task = "classification"

    epochs: int = 5
    batch_size: int = 128
    learning_rate: float = 1e-4
    image_size: int | None = None
    """Side of the images that reach the network; None for the model's own."""

    def view(self, images: Tensor, labels: Tensor, generator: Generator) -> tuple[Tensor, Tensor]:
        """A shifted crop, a mirror image, light colours."""
        return class_view(images, generator, flip=self.flip, colour=self.colour), labels


@dataclass(frozen=True)
class MapTuning(Tuning):
    """For segmentation; the defaults train a SegFormer from random weights on a few hundred pictures."""

    task = "segmentation"

    epochs: int = 300
    batch_size: int = 16
    learning_rate: float = 1e-3
    colour: float = 0.5
    head_rate: float = 1.0
    """The learning rate of the decoder is so many times the encoder's."""
    scale_from: float = 0.5
    scale_to: float = 2.0
    """Pictures are enlarged by a factor between these two, and cut to their own size."""
    balance: float = 0.3
    """Classes weigh by their share of the pixels to the power of minus this."""
    overlap: float = 0.5
    """Weight of a second loss: one minus the overlap of prediction and label, of each class."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0.1 <= self.scale_from <= self.scale_to <= 10:
            given = f"{self.scale_from} to {self.scale_to}"
            message = f"scale_from must be at least 0.1, scale_to at most 10 and not smaller; got {given}"
            raise UserError(message, code="wrong-value")

    def groups(self, model: VisionModel) -> list[dict[str, Any]]:
        """Encoder and decoder, the latter at a learning rate of its own."""
        parts = (model.network.get_submodule(name) for name in ("segformer", "decode_head"))
        encoder, decoder = (decayed(part, self.weight_decay) for part in parts)
        return [*encoder, *({**group, "lr": self.learning_rate * self.head_rate} for group in decoder)]

    def view(self, images: Tensor, labels: Tensor, generator: Generator) -> tuple[Tensor, Tensor]:
        """A smaller or larger part, a mirror image, other colours."""
        scales = self.scale_from, self.scale_to
        return map_view(images, labels, scales, generator, mirror=self.flip, colour=self.colour)

    def loss(self, labels: Tensor, classes: int, device: torch.device) -> Loss:
        """Weighted cross entropy and overlap."""
        weights = class_weights(labels, classes, self.balance).to(device)
        return partial(map_loss, weights=weights, smoothing=self.smoothing, overlap=self.overlap)


_TUNINGS: dict[str, type[ClassTuning | MapTuning]] = {kind.task: kind for kind in (ClassTuning, MapTuning)}


def make_recipe(task: str, values: Mapping[str, Any]) -> ClassTuning | MapTuning:
    """Give the recipe of a task, with some values of one's own; one that the task does not have is refused."""
    recipe_class = _TUNINGS[task]
    known = {field.name for field in fields(recipe_class)}
    if strange := [name for name in values if name not in known]:
        message = f"training for {task} has no {strange[0]}: leave out --{strange[0].replace('_', '-')}"
        raise UserError(message, code="option-conflict")
    return recipe_class(**values)


def decayed(module: nn.Module, decay: float) -> list[dict[str, Any]]:
    """Groups of an optimiser: decay matrices and kernels, not biases, scales and other vectors."""
    parameters = [p for p in module.parameters() if p.requires_grad]
    return [
        {"params": [p for p in parameters if p.ndim > 1], "weight_decay": decay},
        {"params": [p for p in parameters if p.ndim < 2], "weight_decay": 0.0},
    ]
