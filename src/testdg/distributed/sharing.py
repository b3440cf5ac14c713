"""A batch that processes share: the rows of each, and what a step needs of all of them.

Outside `share` every function here is what one process would do: a mean is the mean, a count the number of rows. So a
method is written once. What its result depends on must be asked for here unless it is a loss: a loss is the mean over
the images of a process, and `weighted` and `summed` make the gradient of the mean over all out of it.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Generator, Tensor

from testdg.distributed.group import collect, current


@dataclass(frozen=True)
class Share:
    """How many images of a batch each process has, in order; where there are too few of them, each has all."""

    sizes: tuple[int, ...]
    total: int
    rank: int

    @property
    def repeated(self) -> bool:
        """Whether every process has the whole batch, since there are not enough images for all."""
        return sum(self.sizes) > self.total

    @property
    def rows(self) -> slice:
        """The rows of this process."""
        start = 0 if self.repeated else sum(self.sizes[: self.rank])
        return slice(start, start + self.sizes[self.rank])

    @property
    def weight(self) -> float:
        """What the mean of this process counts."""
        return self.sizes[self.rank] / sum(self.sizes)


_share: ContextVar[Share | None] = ContextVar("share", default=None)


def split(images: int, processes: int, rank: int) -> Share:
    """Split a batch evenly, the first processes having one image more where it does not come out even.

    Examples:
        >>> [split(7, 3, rank).rows for rank in range(3)]
        [slice(0, 3, None), slice(3, 5, None), slice(5, 7, None)]
        >>> split(2, 3, 1).rows
        slice(0, 2, None)
    """
    least, more = divmod(images, processes)
    sizes = [least + (number < more) for number in range(processes)] if least else [images] * processes
    return Share(tuple(sizes), images, rank)


@contextmanager
def share(*batch: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """Give this process its rows of a batch that all have; what is computed within belongs to this batch.

    An error within ends the group: the others cannot know what this process has left out.
    """
    if (group := current()) is None:
        yield batch
        return
    group.require()
    mine = split(len(batch[0]), group.size, group.rank)
    before = _share.set(mine)
    try:
        yield tuple(part[mine.rows] for part in batch)
    except BaseException:
        group.end("a batch failed in this process, and the others cannot go on without it: start all of them again")
        raise
    finally:
        _share.reset(before)


@contextmanager
def whole() -> Iterator[None]:
    """What is computed within is the same in every process, and shared by none."""
    before = _share.set(None)
    try:
        yield
    finally:
        _share.reset(before)


def by_share(predict: Callable[[Tensor], Tensor], images: Tensor) -> Tensor:
    """Predict a batch that all processes have, each its rows, and give all of them the whole prediction."""
    with share(images) as (mine,):
        return rows(predict(mine))


def shared() -> bool:
    """Whether the batch at hand is shared."""
    return _share.get() is not None


def _share_of(rows: Tensor) -> Share | None:
    """The share that some rows are; of other rows nothing can be said."""
    mine = _share.get()
    assert mine is None or len(rows) == mine.sizes[mine.rank], (len(rows), mine)
    return mine


def count(rows: Tensor) -> int:
    """Number of images of the batch, of which this process has some rows."""
    mine = _share_of(rows)
    return rows.shape[0] if mine is None else mine.total  # unlike len, torch.export can leave it open


@torch.no_grad()
def average(values: Tensor) -> Tensor:
    """The mean over all images, of a mean over those of this process; without gradient."""
    values = values.detach()
    if (mine := _share.get()) is None:
        return values
    total = values.float() * mine.weight
    collect(dist.all_reduce, total)
    return total.to(values.dtype)


def pooled(mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and variance over all images, of those over the images of this process; gradients pass."""
    if (mine := _share.get()) is None:
        return mean, variance
    own = torch.stack([mean, variance])
    places = [own if number == mine.rank else torch.zeros_like(own) for number in range(len(mine.sizes))]
    means, variances = _Sum.apply(torch.stack(places)).unbind(1)  # type: ignore[no-untyped-call]
    weights = means.new_tensor(mine.sizes).view(-1, *[1] * mean.ndim) / sum(mine.sizes)
    centre = (weights * means).sum(0)
    return centre, (weights * (variances + (means - centre).square())).sum(0)


class _Sum(torch.autograd.Function):
    """Sum over the processes; each loss depends on what all have put in, so gradients are summed as well."""

    @staticmethod
    def forward(ctx: Any, values: Tensor) -> Tensor:
        total = values.clone()
        collect(dist.all_reduce, total)
        return total

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        total = gradients[0].clone(memory_format=torch.contiguous_format)
        collect(dist.all_reduce, total)
        return total


@torch.no_grad()
def rows(values: Tensor) -> Tensor:
    """The rows of all images, in order, of those of this process; without gradient."""
    values = values.detach()
    if (mine := _share_of(values)) is None:
        return values
    if mine.repeated:
        values = values.clone(memory_format=torch.contiguous_format)
        collect(dist.broadcast, values, src=0)
        return values
    padded = values.new_zeros(max(mine.sizes), *values.shape[1:])
    padded[: len(values)] = values
    found = [torch.empty_like(padded) for _ in mine.sizes]
    collect(dist.all_gather, found, padded)
    return torch.cat([part[:size] for part, size in zip(found, mine.sizes, strict=True)])


def draw(function: Callable[..., Tensor], shape: Sequence[int], generator: Generator, device: torch.device) -> Tensor:
    """Random numbers for the images of this process, `shape[0]` of them: drawn for all, so that they are those of one.

    `function` is torch.rand or torch.randn.
    """
    mine = _share.get()
    if mine is None:
        return function(shape, generator=generator, device=device)
    assert shape[0] == mine.sizes[mine.rank], (shape, mine)
    return function((mine.total, *shape[1:]), generator=generator, device=device)[mine.rows]


def weighted(loss: Tensor) -> Tensor:
    """The part of a mean loss over the images of this process in the mean over all."""
    mine = _share.get()
    return loss if mine is None else loss * mine.weight


@torch.no_grad()
def summed(gradients: Sequence[Tensor | None]) -> tuple[Tensor | None, ...]:
    """Gradients of `weighted` losses, added up over the processes, all in one message."""
    used = [gradient for gradient in gradients if gradient is not None]
    if not shared() or not used:
        return tuple(gradients)
    flat = torch.cat([gradient.reshape(-1) for gradient in used])
    collect(dist.all_reduce, flat)
    parts = iter(torch.split(flat, [gradient.numel() for gradient in used]))
    return tuple(None if gradient is None else next(parts).view(gradient.shape) for gradient in gradients)
