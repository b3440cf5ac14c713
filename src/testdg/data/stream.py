"""Streams of labelled images: domains one after another or mixed, cut into batches, with random access."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, groupby
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from testdg.errors import UserError

Array = NDArray[Any]
SamplingName = Literal["file", "mixed", "dirichlet", "sorted"]


@dataclass(frozen=True)
class Sampling:
    """The order of images: "file" as in the files, "sorted" by class, "mixed" over all domains, "dirichlet" in bunches
    of classes.

    Only "dirichlet" uses `concentration` (a smaller value makes purer bunches); it and "mixed" use `seed`.
    """

    name: SamplingName = "file"
    concentration: float = 0.1
    seed: int = 0

    def order(self, labels: Tensor, number: int) -> Tensor:
        """A permutation of the images with these labels; the random numbers depend on `seed` and `number`."""
        random = np.random.default_rng([self.seed, number])
        if self.name == "file":
            return torch.arange(len(labels))
        if self.name == "sorted":
            return labels.sort(stable=True).indices
        if self.name == "mixed":
            return torch.from_numpy(random.permutation(len(labels)))
        return torch.from_numpy(_dirichlet(labels.numpy(), self.concentration, random))


def _dirichlet(labels: Array, concentration: float, random: np.random.Generator) -> Array:
    """Spread each class over as many slots as there are classes, in shares drawn from a Dirichlet distribution."""
    classes = np.unique(labels)
    slots: list[list[int]] = [[] for _ in classes]
    for label in classes:
        mine = random.permutation(np.flatnonzero(labels == label))
        shares = random.dirichlet(np.full(len(classes), concentration))
        cuts = np.round(shares.cumsum()[:-1] * len(mine)).astype(int)
        for slot, part in zip(slots, np.split(mine, cuts), strict=True):
            slot.extend(part.tolist())
    return np.concatenate([random.permutation(np.array(slot, dtype=np.int64)) for slot in slots])


class ImageSource(Protocol):
    """Images of a domain, by range or by index."""

    def __len__(self) -> int: ...

    def read(self, start: int, stop: int) -> Tensor:
        """Images `start` to `stop`, uint8, (N, 3, H, W), or label maps, (N, H, W); may read ahead."""
        return self.take(range(start, min(stop, len(self))))

    def take(self, indices: Sequence[int]) -> Tensor:
        """Images by index, in this order."""


@dataclass(frozen=True)
class LabelledImages(ImageSource):
    """Images in memory, uint8, (N, 3, H, W), with their labels: int64 (N), or uint8 maps (N, H, W)."""

    images: Tensor
    labels: Tensor

    def __len__(self) -> int:
        return len(self.labels)

    def take(self, indices: Sequence[int]) -> Tensor:
        return self.images[list(indices)]

    def first(self, count: int | None) -> LabelledImages:
        return LabelledImages(self.images[:count], self.labels[:count])


@dataclass(frozen=True, eq=False)
class Domain:
    """Images of one condition with their labels.

    Labels are int64 numbers, one per image; or uint8 maps, (N, H, W), with 255 for pixels without a class. Maps may be
    read from a source, like the images, and may have another size than these.
    """

    name: str
    severity: int | None
    source: ImageSource
    labels: Tensor | ImageSource

    def __len__(self) -> int:
        return len(self.labels)

    def read(self, start: int, stop: int) -> tuple[Tensor, Tensor]:
        """The images (float in [0, 1]) and labels of a range."""
        images = to_float(self.source.read(start, stop))
        if isinstance(self.labels, Tensor):
            return images, self.labels[start:stop]
        return images, self.labels.read(start, stop)

    def take(self, indices: Sequence[int]) -> tuple[Tensor, Tensor]:
        """The images (float in [0, 1]) and labels at some indices, in this order."""
        images = to_float(self.source.take(indices))
        if isinstance(self.labels, Tensor):
            return images, self.labels[list(indices)]
        return images, self.labels.take(indices)

    def image_labels(self) -> Tensor:
        """One label per image; -1 if labels are maps."""
        if isinstance(self.labels, Tensor) and self.labels.ndim == 1:
            return self.labels
        return torch.full((len(self),), -1)


class Segment(NamedTuple):
    """A visit to a domain: its round, and whether the adapter learns or is only tested."""

    domain: Domain
    round: int = 1
    learn: bool = True


class Batch(NamedTuple):
    """Images of one segment, or of several if domains are mixed.

    `number` counts the batches of the stream. For each image, `segments` has the number of its segment, `indices` its
    index in the domain, and `positions` the number of images of its segment before it.
    """

    number: int
    block: Block
    images: Tensor
    labels: Tensor
    segments: Tensor
    indices: Tensor
    positions: Tensor

    @property
    def name(self) -> str:
        """The name of the domain, or "mixed"."""
        return self.block.name

    @property
    def learn(self) -> bool:
        return self.block.learn


def to_float(levels: Tensor) -> Tensor:
    """Convert uint8 to float32 in [0, 1]."""
    return levels.to(torch.float32) / 255


class Block:
    """One segment, or several that are mixed. A batch never contains images of two blocks.

    To mix segments, their images are numbered one after the other and the numbers are permuted; `starts` converts a
    number back to a segment and an index. The permutation depends on labels and seed, not on images: any batch can
    be read alone.
    """

    def __init__(self, segments: Sequence[Segment], first: int, sampling: Sampling) -> None:
        self.segments, self.first, self.sampling = tuple(segments), first, sampling
        self.starts = [0, *accumulate(len(segment.domain) for segment in segments)]
        self.name = segments[0].domain.name if len(segments) == 1 else "mixed"
        self.round, self.learn = segments[0].round, segments[0].learn
        levels = {segment.domain.severity for segment in segments}
        self.severity = levels.pop() if len(levels) == 1 else None

    def __len__(self) -> int:
        return self.starts[-1]

    @cached_property
    def _order(self) -> tuple[Tensor, Tensor, Tensor]:
        """Segment, index and position of every image, in the order of the stream."""
        labels = torch.cat([segment.domain.image_labels() for segment in self.segments])
        order = self.sampling.order(labels, self.first)
        starts = torch.tensor(self.starts)
        segments = torch.bucketize(order, starts[1:], right=True)
        positions = torch.empty_like(order)
        for number in range(len(self.segments)):
            mine = segments == number
            positions[mine] = torch.arange(int(mine.sum()))
        return segments, order - starts[segments], positions

    def read(self, start: int, stop: int) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """Images, labels, segments, indices and positions of a range."""
        if self.sampling.name == "file":
            images, labels = self.segments[0].domain.read(start, stop)
            indices = torch.arange(start, stop)
            return images, labels, torch.full_like(indices, self.first), indices, indices
        segments, indices, positions = (values[start:stop] for values in self._order)
        places = [(segments == number).nonzero().flatten() for number in range(len(self.segments))]
        parts = [
            segment.domain.take(indices[place].tolist())
            for segment, place in zip(self.segments, places, strict=True)
            if len(place)
        ]
        # The parts were read segment by segment; this restores the order of the stream.
        back = torch.cat(places).argsort()
        images, labels = (torch.cat(values)[back] for values in zip(*parts, strict=True))
        return images, labels, segments + self.first, indices, positions


class Stream:
    """The batches of several segments (or domains), in order.

    Each block is cut into batches separately; its last batch may be shorter. A block is one segment. If domains are
    mixed, a block is all segments of a round that are learnt from, or all that are only tested.
    """

    def __init__(self, segments: Sequence[Segment | Domain], batch_size: int, sampling: Sampling | None = None) -> None:
        if batch_size < 1:
            raise UserError(f"batch size must be at least 1; got {batch_size}", code="wrong-batch-size")
        if not segments:
            raise UserError("a stream needs at least one domain; got none", code="no-domains")
        self.segments = tuple(Segment(item) if isinstance(item, Domain) else item for item in segments)
        self.sizes = torch.tensor([len(segment.domain) for segment in self.segments])
        self.batch_size = batch_size
        sampling = sampling or Sampling()
        groups = [[segment] for segment in self.segments]
        if sampling.name == "mixed":
            rounds = groupby(self.segments, key=lambda segment: (segment.round, segment.learn))
            groups = [list(group) for _, group in rounds]
        firsts = accumulate(map(len, groups), initial=0)
        self.blocks = [Block(group, first, sampling) for group, first in zip(groups, firsts, strict=False)]
        self._ends = list(accumulate(-(-len(block) // batch_size) for block in self.blocks))

    @property
    def domains(self) -> tuple[Domain, ...]:
        return tuple(segment.domain for segment in self.segments)

    def __len__(self) -> int:
        return self._ends[-1]

    def __iter__(self) -> Iterator[Batch]:
        return self.batches()

    def batches(self, start: int = 0) -> Iterator[Batch]:
        """Batches from number `start` on; earlier ones are not read."""
        return (self[number] for number in range(start, len(self)))

    def __getitem__(self, number: int) -> Batch:
        if not 0 <= number < len(self):
            raise IndexError(f"the stream has {len(self)} batches; number {number} does not exist")
        index = bisect_right(self._ends, number)
        block, first = self.blocks[index], self._ends[index - 1] if index else 0
        begin = (number - first) * self.batch_size
        return Batch(number, block, *block.read(begin, min(begin + self.batch_size, len(block))))

    def starts_domain(self, number: int) -> bool:
        """Whether a batch is the first of its domain, or of a round of mixed domains."""
        return number == 0 or number in self._ends

    def ends_domain(self, number: int) -> bool:
        """Whether a batch is the last of its domain, or of a round of mixed domains."""
        return number + 1 in self._ends

    def __repr__(self) -> str:
        return f"Stream({len(self.segments)} domains, {len(self)} batches of {self.batch_size})"
