"""Pictures of many sizes as batches for a model, resized as the model would do it."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import accumulate, groupby, takewhile

import torch
from torch import Tensor

from testdg.data.pictures import Unreadable, as_unit
from testdg.models.preprocessing import Preprocessing

_LARGE = 1 << 16
"""Pixels above which a picture is resized before it waits: a batch of smaller ones is resized faster at once."""


class Canvas:
    """Resizes pictures as the model would; what the model makes of the result is what it would make of the picture."""

    def __init__(self, preprocessing: Preprocessing) -> None:
        self.size, self.crop = preprocessing.size, preprocessing.crop
        self._plain = replace(preprocessing, crop=None)
        self.mixed = False  # whether pictures of several sizes were seen

    def shrink(self, image: Tensor) -> Tensor:
        """A picture at the model's size, if it is large or others have another size; else it is left to the batch."""
        height, width = image.shape[-2:]
        if isinstance(self.size, int):
            smaller = min(height, width) > self.size
        else:
            smaller = self.size is not None and self.size[0] * self.size[1] < height * width
        return self.fit(image) if self.mixed or (smaller and height * width > _LARGE) else image

    def fit(self, image: Tensor) -> Tensor:
        """A picture at the model's size."""
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
        """Pixels of a picture once the model has resized it."""
        height, width = image.shape[-2:]
        if self.size is None:
            return int(height * width)
        if isinstance(self.size, int):
            return int(self.size**2 * max(height, width) / min(height, width))
        return self.size[0] * self.size[1]

    def fitting(self, images: Iterable[Tensor], most: int) -> int:
        """How many of the first pictures have no more pixels together than that; one in any case."""
        sums = accumulate(map(self.pixels, images))
        return max(1, sum(1 for _ in takewhile(lambda pixels: pixels <= most, sums)))

    def batches(self, images: Sequence[Tensor]) -> list[tuple[list[int], Tensor]]:
        """Pictures as batches in [0, 1], with their places: one if they can share a size, else one for each size."""
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
    """The square in the middle, placed so that its own middle is the one that the model would have cut out."""
    sizes = zip(image.shape[-2:], crop, strict=True)
    top, left = ((have - want) // 2 - (side - want) // 2 for have, want in sizes)
    return image[..., top : top + side, left : left + side]
