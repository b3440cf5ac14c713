"""Watching TestDG choose prototypes."""

from typing import NamedTuple

from torch import Tensor

from testdg.data.stream import Stream
from testdg.errors import UserError
from testdg.methods.testdg import TestDG


class Selection(NamedTuple):
    """The moment when prototypes are chosen: the queue (N, D) and the prototypes (M, D), with stream positions."""

    batch: int
    queue: Tensor
    queue_positions: Tensor
    prototypes: Tensor
    positions: Tensor


def watch(adapter: TestDG) -> list[Selection]:
    """A list that grows whenever the adapter chooses prototypes."""
    found: list[Selection] = []
    add = adapter.prototypes.add

    def remember(embeddings: Tensor, positions: Tensor) -> None:
        queue, places = adapter.queue.content()  # it is emptied right after
        found.append(Selection(adapter.batches, queue.clone(), places.clone(), embeddings.clone(), positions.clone()))
        add(embeddings, positions)

    adapter.prototypes.add = remember  # type: ignore[method-assign]
    return found


def images_at(stream: Stream, positions: list[int]) -> list[Tensor]:
    """Images by how many came before them in the stream."""
    found = []
    for position in positions:
        rest = position
        for block in stream.blocks:
            if rest < len(block):
                found.append(block.read(rest, rest + 1)[0][0])
                break
            rest -= len(block)
    return found


def no_change() -> UserError:
    """The error for a stream on which nothing was detected."""
    remedy = "lower the threshold, as in --set testdg.threshold=0.05, or take more images"
    return UserError(f"no domain change was detected on this stream, so there are no prototypes: {remedy}")
