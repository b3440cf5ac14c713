"""Recipes of `fine_tune`: everything that trained weights depend on, besides the starting model and the images."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, ClassVar

from testdg.errors import UserError

_WHOLE = ("epochs", "batch_size", "image_size", "images")
_SHARES = ("weight_decay", "smoothing", "colour", "balance")
_AMOUNTS = ("learning_rate", "head_rate", "overlap")


@dataclass(frozen=True)
class Tuning:
    """What the recipes of all tasks have in common."""

    task: ClassVar[str]

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
                raise UserError(f"{name} must be at least 1; got {value}")
            if name in _AMOUNTS and not 0 <= value < math.inf:
                raise UserError(f"{name} must be at least 0 and finite; got {value}")
            if name in _SHARES and not 0 <= value <= 1:
                raise UserError(f"{name} must be in [0, 1]; got {value}")
        if self.precision not in ("fp32", "bf16"):
            raise UserError(f"precision must be fp32 or bf16; got {self.precision!r}")
        if not 0 <= self.seed < 2**32:
            raise UserError(f"seed must be in [0, 4294967295]; got {self.seed}")


@dataclass(frozen=True)
class FineTuning(Tuning):
    """For classification; the defaults fine-tune a pre-trained transformer."""

    task = "classification"

    epochs: int = 5
    batch_size: int = 128
    learning_rate: float = 1e-4
    image_size: int | None = None
    """Side of the images that reach the network; None for the model's own."""


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
            asked = f"{self.scale_from} to {self.scale_to}"
            raise UserError(f"scale_from must be at least 0.1, scale_to at most 10 and not smaller; got {asked}")


_RECIPES: dict[str, type[FineTuning | MapTuning]] = {kind.task: kind for kind in (FineTuning, MapTuning)}


def make_recipe(task: str, values: Mapping[str, Any]) -> FineTuning | MapTuning:
    """Give the recipe of a task, with some values of one's own; one that the task does not have is refused."""
    kind = _RECIPES[task]
    known = {field.name for field in fields(kind)}
    if strange := [name for name in values if name not in known]:
        raise UserError(f"training for {task} has no {strange[0]}: leave out --{strange[0].replace('_', '-')}")
    return kind(**values)
