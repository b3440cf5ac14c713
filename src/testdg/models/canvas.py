"""Batches of pictures that have different sizes, resized as the model would resize them."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import accumulate, groupby, takewhile

import torch
from torch import Tensor

from testdg.data.pictures import Unreadable, as_unit
from testdg.models.preprocessing import Preprocessing

_LARGE = 1 << 16
"""Pixels above which a picture is resized before it waits for its batch; smaller ones are faster as a batch."""


class Canvas:
    """Resizes pictures before the model does, such that the network gets the same input as without it."""

    def __init__(self, preprocessing: Preprocessing) -> None:
        self.size, self.crop = preprocessing.size, preprocessing.crop
        self._plain = replace(preprocessing, crop=None)
        self.mixed = False  # whether pictures of several sizes were seen

    def shrink(self, image: Tensor) -> Tensor:
        """Resize a large picture, or any picture once sizes differ; others are returned as they are, for `batches`."""
        height, width = image.shape[-2:]
        if isinstance(self.size, int):
            smaller = min(height, width) > self.size
        else:
            smaller = self.size is not None and self.size[0] * self.size[1] < height * width
        return self.fit(image) if self.mixed or (smaller and height * width > _LARGE) else image

    def fit(self, image: Tensor) -> Tensor:
        """Resize a picture to the model's size."""
        if self.size is None:
            return image
        try:
            resized = self._plain.resize(as_unit(image)[None])[0]
        except ValueError as error:
            raise Unreadable(str(error)) from error
        if isinstance(self.size, int) and self.crop is not None and max(self.crop) <= self.size:
            return _cut(resized, self.size, self.crop)
        return resized

    def pixels(self, image: Tensor) -> int:
        """Number of pixels of a picture after the model has resized it."""
        height, width = image.shape[-2:]
        if self.size is None:
            return int(height * width)
        if isinstance(self.size, int):
            return int(self.size**2 * max(height, width) / min(height, width))
        return self.size[0] * self.size[1]

    def fitting(self, images: Iterable[Tensor], most: int) -> int:
        """How many pictures, from the first on, have at most `most` pixels together after resizing; at least one."""
        sums = accumulate(map(self.pixels, images))
        return max(1, sum(1 for _ in takewhile(lambda pixels: pixels <= most, sums)))

    def batches(self, images: Sequence[Tensor]) -> list[tuple[list[int], Tensor]]:
        """Batches in [0, 1], one for each size that remains after resizing, each with the positions of its pictures."""
        if len({image.shape for image in images}) > 1:
            self.mixed = True
            images = [self.fit(image) for image in images]
        places = sorted(range(len(images)), key=lambda place: images[place].shape)
        groups = [list(group) for _, group in groupby(places, key=lambda place: images[place].shape)]
        return [(group, _stacked([images[place] for place in group])) for group in groups]


def _stacked(images: Sequence[Tensor]) -> Tensor:
    if all(image.dtype == torch.uint8 for image in images):
        return as_unit(torch.stack(list(images)))
    return torch.stack([as_unit(image) for image in images])


def _cut(image: Tensor, side: int, crop: tuple[int, int]) -> Tensor:
    """Cut out a square such that the model's centre crop is the same as without it."""
    sizes = zip(image.shape[-2:], crop, strict=True)
    top, left = ((have - want) // 2 - (side - want) // 2 for have, want in sizes)
    return image[..., top : top + side, left : left + side]
