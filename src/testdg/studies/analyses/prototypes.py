"""Analyses of TestDG's prototypes: how they are chosen from the queue, and how well they follow the model."""

from typing import NamedTuple

import torch
from torch import Tensor

from testdg.data.stream import Stream
from testdg.errors import UserError
from testdg.methods.testdg import TestDG
from testdg.methods.testdg.selection import median_gamma, mmd2, selection_mmd2
from testdg.studies.analyses.spaces import project
from testdg.studies.analyses.subject import Numbers, Subject, replay, spaced, warm_run

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
    """A list that gets a `Selection` whenever the adapter chooses prototypes."""
    selections: list[Selection] = []
    add = adapter.prototypes.add

    def remember(embeddings: Tensor, positions: Tensor) -> None:
        queue, places = adapter.queue.content()  # it is emptied afterwards
        copies = (tensor.clone() for tensor in (queue, places, embeddings, positions))
        selections.append(Selection(adapter.batches, *copies))
        add(embeddings, positions)

    adapter.prototypes.add = remember  # type: ignore[method-assign]
    return selections


def images_at(stream: Stream, positions: list[int]) -> list[Tensor]:
    """Images by their positions in the stream."""
    images = []
    for rest in positions:
        for block in stream.blocks:
            if rest < len(block):
                images.append(block.read(rest, rest + 1)[0][0])
                break
            rest -= len(block)
    return images


def no_change() -> UserError:
    """The error for a stream without a detected change."""
    remedy = "lower the threshold, as in --set testdg.threshold=0.05, or take more images"
    return UserError(
        f"no domain change was detected on this stream, so there are no prototypes: {remedy}", code="no-prototypes"
    )


def compute_prototypes(subject: Subject) -> Numbers:
    """Embeddings in two dimensions, the prototypes among them, and their distance from all embeddings (MMD²)."""
    session = warm_run(subject.adapting()[0])
    adapter = session.adapter
    assert isinstance(adapter, TestDG)  # `Analysis.choose` has refused others
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
    """Indices of the prototypes in the queue."""
    exact = "donot_use_mm_for_euclid_dist"
    return torch.cdist(selection.prototypes, selection.queue, compute_mode=exact).argmin(1)


def random_mmd2(selection: Selection, gamma: float | None) -> float:
    """The mean distance of as many random embeddings."""
    generator = torch.Generator().manual_seed(0)
    queue, count = selection.queue, len(selection.prototypes)
    draws = (torch.randperm(len(queue), generator=generator)[:count].to(queue.device) for _ in range(DRAWS))
    return max(0.0, sum(float(selection_mmd2(queue, draw, gamma)) for draw in draws) / DRAWS)


# Drift


def compute_drift(subject: Subject) -> Numbers:
    """Squared MMD of target to original and to updated prototypes after every batch that has prototypes.

    The target is the embeddings of the images of the prototypes by the present model.
    """
    session = warm_run(subject.adapting()[0])
    adapter = session.adapter
    assert isinstance(adapter, TestDG)  # `Analysis.choose` has refused others
    if adapter.cells > 1:
        grid = adapter.settings.grid
        message = f"drift follows one embedding per image; grid {grid} has more: set testdg.grid=1"
        raise UserError(message, code="not-analyzable")
    selections, stream, seen = watch(adapter), session.stream, 0
    numbers: Numbers = {"positions": [], "original": [], "updated": [], "changes": []}
    images, changes = torch.empty(0), 0
    for batch in replay(session, subject.notify):
        if len(selections) > changes:
            changes = len(selections)
            numbers["changes"].append(seen)
            positions = adapter.prototypes.positions[: len(adapter.prototypes)].tolist()
            images = torch.stack(images_at(stream, positions))
        seen += len(batch.images)
        if selections:
            stored = selections[-len(adapter.prototypes.counts) :]
            original, updated = distances(adapter, images, torch.cat([one.prototypes for one in stored]))
            for key, value in (("positions", seen), ("original", original), ("updated", updated)):
                numbers[key].append(value)
    if not selections:
        raise no_change()
    return {**numbers, "mean": {key: sum(numbers[key]) / len(numbers[key]) for key in ("original", "updated")}}


def distances(adapter: TestDG, images: Tensor, original: Tensor) -> tuple[float, float]:
    """Squared MMD from the target to the original prototypes, and to those of the adapter."""
    target = adapter.embed(images)
    gamma = median_gamma(target)
    return float(mmd2(target, original, gamma)), float(mmd2(target, adapter.prototypes.current, gamma))
