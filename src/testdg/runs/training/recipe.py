"""Recipes: everything that trained weights depend on, besides the starting model and the images.

A recipe holds values, and says what differs between trainings that share a loop: the view of a batch and its loss.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, ClassVar, Literal, get_type_hints

import torch
import torch.nn.functional as F
from msgspec import Meta
from torch import Generator, Tensor, nn

from testdg.errors import UserError
from testdg.models import VisionModel
from testdg.runs.training.losses import class_weights, map_loss
from testdg.runs.training.views import class_view, map_view
from testdg.schema import check_value

Loss = Callable[[Tensor, Tensor], Tensor]
"""Returns the loss of logits and labels."""

Count = Annotated[int, Meta(ge=1)]
Amount = Annotated[float, Meta(ge=0, le=1e6)]
Share = Annotated[float, Meta(ge=0, le=1)]


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
class TuningRecipe(Recipe):
    """What the recipes of `fine_tune` have in common; the types of the fields say which values are allowed."""

    epochs: Count
    batch_size: Count
    learning_rate: Amount
    weight_decay: Share = 0.05
    smoothing: Share = 0.0
    images: Count | None = None
    """First training images; None for all."""
    flip: bool = True
    colour: Share = 0.25
    precision: Literal["fp32", "bf16"] = "fp32"
    seed: Annotated[int, Meta(ge=0, le=2**32 - 1)] = 0

    def __post_init__(self) -> None:
        declared = get_type_hints(type(self), include_extras=True)
        for name, value in vars(self).items():
            check_value(declared[name], name, value)

    def groups(self, model: VisionModel) -> list[dict[str, Any]]:
        """What the optimiser learns, and how."""
        return decayed(model, self.weight_decay)


@dataclass(frozen=True)
class ClassTuning(TuningRecipe):
    """For classification; the defaults fine-tune a pre-trained transformer."""

    task = "classification"

    epochs: Count = 5
    batch_size: Count = 128
    learning_rate: Amount = 1e-4
    image_size: Count | None = None
    """Side of the images that reach the network; None for the model's own."""

    def view(self, images: Tensor, labels: Tensor, generator: Generator) -> tuple[Tensor, Tensor]:
        """A shifted crop, a mirror image, light colours."""
        return class_view(images, generator, flip=self.flip, colour=self.colour), labels


@dataclass(frozen=True)
class MapTuning(TuningRecipe):
    """For segmentation; the defaults train a SegFormer from random weights on a few hundred pictures."""

    task = "segmentation"

    epochs: Count = 300
    batch_size: Count = 16
    learning_rate: Amount = 1e-3
    colour: Share = 0.5
    head_rate: Amount = 1.0
    """The learning rate of the decoder is so many times the encoder's."""
    scale_from: float = 0.5
    scale_to: float = 2.0
    """Pictures are enlarged by a factor between these two, and cut to their own size."""
    balance: Share = 0.3
    """Classes weigh by their share of the pixels to the power of minus this."""
    overlap: Amount = 0.5
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
        weights = class_weights(labels, classes, self.balance).to(device)
        return partial(map_loss, weights=weights, smoothing=self.smoothing, overlap=self.overlap)


_RECIPES: dict[str, type[ClassTuning | MapTuning]] = {kind.task: kind for kind in (ClassTuning, MapTuning)}


def make_recipe(task: str, values: Mapping[str, Any]) -> ClassTuning | MapTuning:
    """The recipe of a task with the user's values; a value that the task does not have is refused."""
    recipe_class = _RECIPES[task]
    for name in values:
        if name not in recipe_class.__dataclass_fields__:
            message = f"training for {task} has no {name}: leave out --{name.replace('_', '-')}"
            raise UserError(message, code="option-conflict")
    return recipe_class(**values)


def decayed(module: nn.Module, decay: float) -> list[dict[str, Any]]:
    """Groups of an optimiser: decay matrices and kernels, not biases, scales and other vectors."""
    parameters = [p for p in module.parameters() if p.requires_grad]
    return [
        {"params": [p for p in parameters if p.ndim > 1], "weight_decay": decay},
        {"params": [p for p in parameters if p.ndim < 2], "weight_decay": 0.0},
    ]
