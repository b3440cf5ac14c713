"""Clean images under one corruption, or in weather: made when they are read and kept while there is room."""

from collections import OrderedDict
from collections.abc import Hashable, Sequence
from typing import Protocol

import torch
from torch import Tensor

from testdg.data.corruptions import corrupt_uint8
from testdg.data.stream import ImageSource


class Corrupt(Protocol):
    """What makes uint8 images, (N, 3, H, W), worse: `corrupt_uint8` or `weather`, with its seed and so on."""

    def __call__(self, images: Tensor, name: str, severity: int, /, *, indices: Sequence[int]) -> Tensor:
        """Images under a corruption; `indices` are their places in the data set."""


class PixelCache:
    """Images by key, up to a number of bytes; those that were not used for the longest time go first."""

    def __init__(self, limit: int = 1 << 30) -> None:
        self.limit, self.size = limit, 0
        self._kept: OrderedDict[Hashable, Tensor] = OrderedDict()

    def get(self, key: Hashable) -> Tensor | None:
        """An image that is kept, or None."""
        if key in self._kept:
            self._kept.move_to_end(key)
        return self._kept.get(key)

    def put(self, key: Hashable, image: Tensor) -> None:
        """Keep an image."""
        if key not in self._kept:
            self._kept[key] = image
            self.size += image.nbytes
        while self.size > self.limit:
            self.size -= self._kept.popitem(last=False)[1].nbytes


class CorruptedImages(ImageSource):
    """A domain made on the fly from clean images, uint8, (N, 3, H, W), by `corrupt`.

    `positions` are the images' places in their data set, which the noise depends on (0, 1, ... if left out);
    domains that share a `cache` share its room.
    """

    def __init__(
        self,
        clean: Tensor | ImageSource,
        name: str,
        severity: int,
        corrupt: Corrupt = corrupt_uint8,
        *,
        positions: Sequence[int] | None = None,
        cache: PixelCache | None = None,
    ) -> None:
        self.clean, self.name, self.severity, self.corrupt = clean, name, severity, corrupt
        self.positions = positions or range(len(clean))
        self._cache = PixelCache() if cache is None else cache

    def __len__(self) -> int:
        return len(self.clean)

    def take(self, indices: Sequence[int]) -> Tensor:
        """The images at some indices, in their order, corrupted."""
        keys = {index: (self.name, self.severity, index) for index in indices}
        images = {index: image for index, key in keys.items() if (image := self._cache.get(key)) is not None}
        missing = [index for index in keys if index not in images]
        if missing:
            positions = [self.positions[index] for index in missing]
            made = self.corrupt(self._clean(missing), self.name, self.severity, indices=positions)
            images.update(zip(missing, made, strict=True))
        for index in missing:
            self._cache.put(keys[index], images[index])
        return torch.stack([images[index] for index in indices])

    def _clean(self, indices: list[int]) -> Tensor:
        if isinstance(self.clean, Tensor):
            return self.clean[indices]
        if indices == list(range(indices[0], indices[0] + len(indices))):
            return self.clean.read(indices[0], indices[-1] + 1)  # files read the next ones ahead
        return self.clean.take(indices)
