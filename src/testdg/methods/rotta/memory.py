"""A memory of images that is balanced over the predicted classes and prefers recent, certain images."""

import math
from collections import Counter
from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple

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
    fullest classes) and only if that one is worse. Old and uncertain images are bad. New images lie beside the others
    until `write` is called, so that a step that fails has written nothing.
    """

    varying: ClassVar[tuple[str, ...]] = ("images",)
    uncopied: ClassVar[tuple[str, ...]] = ("images",)
    images: Tensor

    def __init__(self, capacity: int, classes: int, device: torch.device) -> None:
        super().__init__()
        self.capacity, self.classes = capacity, classes
        self.items: list[Item] = []
        self.new: dict[int, Tensor] = {}
        self.register_buffer("images", torch.zeros(0, device=device))

    def __len__(self) -> int:
        """Number of remembered images."""
        return len(self.items)

    def add(self, image: Tensor, label: int, entropy: float) -> None:
        """Offer an image with its predicted class and entropy; everything grows older by one."""
        new = Item(-1, label, entropy / math.log(self.classes), 0)
        place = self._find_place(new)
        if place is not None:
            self.new[place] = image
            self.items = [item for item in self.items if item.place != place] + [new._replace(place=place)]
        self.items = [item._replace(age=item.age + 1) for item in self.items]

    def content(self) -> tuple[Tensor, Tensor]:
        """The images, and the ages relative to the capacity."""
        places = [item.place for item in self.items]
        images = torch.stack([self.new[place] if place in self.new else self.images[place] for place in places])
        return images, torch.tensor([item.age / self.capacity for item in self.items], device=images.device)

    @torch.no_grad()
    def write(self) -> None:
        """Put the new images into their places."""
        for place, image in self.new.items():
            if not len(self.images):
                self.images = torch.zeros(self.capacity, *image.shape, device=image.device)
            self.images[place] = image
        self.new = {}

    def misfit(self, buffers: Mapping[str, Tensor | None]) -> str | None:
        """Name the buffer if it holds neither nothing nor images in all places."""
        images = buffers["images"]
        if images is None or images.dtype != torch.float32:
            return "images"
        return None if images.shape == (0,) or (images.ndim == 4 and len(images) == self.capacity) else "images"

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
        self.items, self.new = [Item(*values) for values in state], {}
