"""Watching TestDG choose prototypes; the embeddings they were chosen from, in two dimensions, with them among these."""

from typing import NamedTuple

import torch
from torch import Tensor

from testdg.data.stream import Stream
from testdg.errors import UserError
from testdg.methods.testdg import TestDG
from testdg.methods.testdg.selection import selection_mmd2
from testdg.studies.analyses.embeddings import project
from testdg.studies.analyses.subject import Numbers, Subject, need_testdg, replay, spaced, warm_run

SHOWN = 4  # moments of selection
DRAWS = 100  # random choices to compare with


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
    for rest in positions:
        for block in stream.blocks:
            if rest < len(block):
                images.append(block.read(rest, rest + 1)[0][0])
                break
            rest -= len(block)
    return images


def no_change() -> UserError:
    """The error for a stream on which nothing was detected."""
    remedy = "lower the threshold, as in --set testdg.threshold=0.05, or take more images"
    return UserError(
        f"no domain change was detected on this stream, so there are no prototypes: {remedy}", code="no-prototypes"
    )


def compute(subject: Subject) -> Numbers:
    """Places of the embeddings, which of them are prototypes, and how well they stand for all of them."""
    session = warm_run(subject.adapting()[0])
    adapter = need_testdg(session.adapter)
    selections, names = watch(adapter), []
    for batch in replay(session, subject.notify):
        names.append(batch.name)
    if not selections:
        raise no_change()
    gamma = adapter.gamma
    chosen = [selections[place] for place in spaced(len(selections), SHOWN)]
    return {"selections": [_about(one, names[one.batch - 1], gamma) for one in chosen], "changes": len(selections)}


def _about(selection: Selection, domain: str, gamma: float | None) -> Numbers:
    chosen = places(selection)
    return {
        "domain": domain,
        "batch": selection.batch,
        "points": project(selection.queue.double().cpu().numpy()).tolist(),
        "chosen": chosen.tolist(),
        "mmd2": max(0.0, float(selection_mmd2(selection.queue, chosen, gamma))),  # rounding may leave it below zero
        "mmd2_random": random_mmd2(selection, gamma),
    }


def places(selection: Selection) -> Tensor:
    """Where the prototypes are in the queue."""
    exact = "donot_use_mm_for_euclid_dist"
    return torch.cdist(selection.prototypes, selection.queue, compute_mode=exact).argmin(1)


def random_mmd2(selection: Selection, gamma: float | None) -> float:
    """The mean of the same distance for as many embeddings drawn at random."""
    generator = torch.Generator().manual_seed(0)
    queue, count = selection.queue, len(selection.prototypes)
    draws = (torch.randperm(len(queue), generator=generator)[:count].to(queue.device) for _ in range(DRAWS))
    return max(0.0, sum(float(selection_mmd2(queue, draw, gamma)) for draw in draws) / DRAWS)
