"""How well prototypes follow the model: distance to where their images are now, with and without the update."""

import torch
from torch import Tensor

from testdg.errors import UserError
from testdg.methods.testdg import TestDG
from testdg.methods.testdg.selection import median_gamma, mmd2
from testdg.studies.analyses.prototypes import images_at, no_change, watch
from testdg.studies.analyses.subject import Numbers, Subject, need_testdg, replay, warm_run


def compute(subject: Subject) -> Numbers:
    """Squared MMD of target to original and to updated prototypes after every batch that has prototypes.

    The target is what the images of the prototypes are embedded to by the model as it is now.
    """
    session = warm_run(subject.adapting()[0])
    adapter = need_testdg(session.adapter)
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
            kept = selections[-len(adapter.prototypes.counts) :]
            original, updated = distances(adapter, images, torch.cat([one.prototypes for one in kept]))
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
