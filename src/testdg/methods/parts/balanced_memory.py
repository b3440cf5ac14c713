"""A memory of images that is balanced over the predicted classes and prefers recent, certain images."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn


class Item(NamedTuple):
    """What is known about a remembered image: its place, predicted class, relative entropy and age in images."""

    place: int
    label: int
    uncertainty: float
    age: int


class BalancedMemory(nn.Module):
    """RoTTA's memory: as many images of each predicted class as there is room for all of them.

    An image takes the place of the worst one of its class (or, while its class has less than its share, of the
    fullest classes) and only if that one is worse. Old and uncertain images are bad.
    """

    images: Tensor

    def __init__(self, capacity: int, classes: int, device: torch.device) -> None:
        super().__init__()
        self.capacity, self.classes = capacity, classes
        self.items: list[Item] = []
        self.register_buffer("images", torch.zeros(0, device=device))

    def __len__(self) -> int:
        """Number of remembered images."""
        return len(self.items)

    def add(self, image: Tensor, label: int, entropy: float) -> None:
        """Offer an image with its predicted class and entropy; everything grows older by one."""
        new = Item(-1, label, entropy / math.log(self.classes), 0)
        place = self._find_place(new)
        if place is not None:
            if not len(self.images):
                self.images = torch.zeros(self.capacity, *image.shape, device=image.device)
            self.images[place] = image
            self.items = [item for item in self.items if item.place != place] + [new._replace(place=place)]
        self.items = [item._replace(age=item.age + 1) for item in self.items]

    def content(self) -> tuple[Tensor, Tensor]:
        """The images, and the ages relative to the capacity."""
        places = torch.tensor([item.place for item in self.items], device=self.images.device)
        ages = torch.tensor([item.age / self.capacity for item in self.items], device=self.images.device)
        return self.images[places], ages

    def _find_place(self, new: Item) -> int | None:
        """A free place, the place of a worse image, or None."""
        held = Counter(item.label for item in self.items)
        candidates = {new.label}
        if held[new.label] < self.capacity / self.classes:
            if len(self.items) < self.capacity:
                return min(set(range(self.capacity)) - {item.place for item in self.items})
            candidates = {label for label, count in held.items() if count == max(held.values())}
        worst = max((item for item in self.items if item.label in candidates), key=self._badness, default=None)
        return worst.place if worst is not None and self._badness(worst) > self._badness(new) else None

    def _badness(self, item: Item) -> float:
        return 1 / (1 + math.exp(-item.age / self.capacity)) + item.uncertainty

    def get_extra_state(self) -> list[Any]:
        """The items, ready for JSON."""
        return [list(item) for item in self.items]

    def set_extra_state(self, state: list[Any]) -> None:
        """Put back what `get_extra_state` gave."""
        self.items = [Item(*values) for values in state]
