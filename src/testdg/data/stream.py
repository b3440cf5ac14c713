"""Streams: domains one after the other, cut into batches, in file order and seekable."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from testdg.errors import UserError


class ImageSource(Protocol):
    """Where a domain's pictures come from: any object that knows its length and reads a range."""

    def __len__(self) -> int:
        """Number of images."""

    def read(self, start: int, stop: int) -> Tensor:
        """Images `start` to `stop`, uint8, (N, 3, H, W)."""


@dataclass(frozen=True)
class Samples:
    """Images in memory, uint8, (N, 3, H, W), with their labels."""

    images: Tensor
    labels: Tensor

    def __len__(self) -> int:
        """Number of images."""
        return len(self.labels)

    def read(self, start: int, stop: int) -> Tensor:
        """Images `start` to `stop`."""
        return self.images[start:stop]

    def first(self, count: int | None) -> Samples:
        """The first images only."""
        return Samples(self.images[:count], self.labels[:count])


@dataclass(frozen=True, eq=False)
class Domain:
    """One kind of image: a name, a severity, and its pictures with labels."""

    name: str
    severity: int
    source: ImageSource
    labels: Tensor

    def __len__(self) -> int:
        """Number of images."""
        return len(self.labels)

    def read(self, start: int, stop: int) -> tuple[Tensor, Tensor]:
        """Images in [0, 1] (float, NCHW) and labels (int64) of a range."""
        return to_float(self.source.read(start, stop)), self.labels[start:stop]


class Batch(NamedTuple):
    """Some images of one domain; `number` counts the batches of the stream, `indices` the images of the domain."""

    number: int
    domain: int
    name: str
    images: Tensor
    labels: Tensor
    indices: range


def to_float(levels: Tensor) -> Tensor:
    """Turn uint8 levels into float32 numbers in [0, 1]."""
    return levels.to(torch.float32) / 255


class Stream:
    """The batches of several domains, in order.

    Images keep their order, the last short batch of a domain is kept, and no batch spans two domains.
    """

    def __init__(self, domains: Sequence[Domain], batch_size: int) -> None:
        if batch_size < 1:
            raise UserError(f"batch size must be at least 1; got {batch_size}")
        if not domains:
            raise UserError("a stream needs at least one domain; got none")
        self.domains = tuple(domains)
        self.batch_size = batch_size
        self._ends = list(accumulate(-(-len(domain) // batch_size) for domain in self.domains))

    def __len__(self) -> int:
        """Number of batches."""
        return self._ends[-1]

    def __iter__(self) -> Iterator[Batch]:
        """All batches, from the first."""
        return self.batches()

    def batches(self, start: int = 0) -> Iterator[Batch]:
        """All batches from number `start` on; earlier ones are not read."""
        return (self[number] for number in range(start, len(self)))

    def __getitem__(self, number: int) -> Batch:
        """One batch by its number."""
        if not 0 <= number < len(self):
            raise IndexError(f"the stream has {len(self)} batches; there is no number {number}")
        index = bisect_right(self._ends, number)
        domain, first = self.domains[index], self._ends[index - 1] if index else 0
        begin = (number - first) * self.batch_size
        indices = range(begin, min(begin + self.batch_size, len(domain)))
        images, labels = domain.read(indices.start, indices.stop)
        return Batch(number, index, domain.name, images, labels, indices)

    def ends_domain(self, number: int) -> bool:
        """Whether a batch is the last of its domain."""
        return number + 1 in self._ends

    def __repr__(self) -> str:
        """Domains, batches and batch size."""
        return f"Stream({len(self.domains)} domains, {len(self)} batches of {self.batch_size})"
