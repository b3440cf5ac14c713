"""The embeddings that prototypes were chosen from, in two dimensions, with the prototypes among them."""

import torch

from testdg.experiments.analyses.embeddings import project
from testdg.experiments.analyses.selections import Selection, no_change, watch
from testdg.experiments.analyses.subject import Numbers, Scene, Subject, need_testdg, replay, spaced
from testdg.methods.testdg.selection import selection_mmd2

SHOWN = 4  # moments of selection
DRAWS = 100  # random choices to compare with


def compute(subject: Subject) -> Numbers:
    """Places of the embeddings, which of them are prototypes, and how well they stand for all of them."""
    scene = Scene.open(subject.adapting()[0])
    adapter = need_testdg(scene.adapter())
    selections, names = watch(adapter), []
    for batch in replay(scene, adapter, subject.tell):
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


def places(selection: Selection) -> torch.Tensor:
    """Where the prototypes are in the queue."""
    exact = "donot_use_mm_for_euclid_dist"
    return torch.cdist(selection.prototypes, selection.queue, compute_mode=exact).argmin(1)


def random_mmd2(selection: Selection, gamma: float | None) -> float:
    """The mean of the same distance for as many embeddings drawn at random."""
    generator = torch.Generator().manual_seed(0)
    queue, count = selection.queue, len(selection.prototypes)
    draws = (torch.randperm(len(queue), generator=generator)[:count].to(queue.device) for _ in range(DRAWS))
    return max(0.0, sum(float(selection_mmd2(queue, draw, gamma)) for draw in draws) / DRAWS)
