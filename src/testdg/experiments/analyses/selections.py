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
    selections: list[Selection] = []
    add = adapter.prototypes.add

    def remember(embeddings: Tensor, positions: Tensor) -> None:
        queue, places = adapter.queue.content()  # it is emptied right after
        copies = (tensor.clone() for tensor in (queue, places, embeddings, positions))
        selections.append(Selection(adapter.batches, *copies))
        add(embeddings, positions)

    adapter.prototypes.add = remember  # type: ignore[method-assign]
    return selections


def images_at(stream: Stream, positions: list[int]) -> list[Tensor]:
    """Images by how many came before them in the stream."""
    images = []
    for position in positions:
        rest = position
        for block in stream.blocks:
            if rest < len(block):
                images.append(block.read(rest, rest + 1)[0][0])
                break
            rest -= len(block)
    return images


def no_change() -> UserError:
    """The error for a stream on which nothing was detected."""
    remedy = "lower the threshold, as in --set testdg.threshold=0.05, or take more images"
    return UserError(f"no domain change was detected on this stream, so there are no prototypes: {remedy}")
