"""TestDG and the stream: what a change of domain does."""

import math
from typing import Any

import pytest
import torch
from testdg_cases import change, make

from testdg.methods.testdg.selection import select_mmd
from testdg.models import VisionModel
from testdg.testing import stream


def test_a_change_turns_the_queue_into_prototypes(vit: VisionModel) -> None:
    adapter = make(vit, prototype_update=False, queue_length=10, prototypes=4, gamma=2.0)
    batches = stream(adapter, 6, 6)
    for images in batches[:2]:
        adapter(images)
    assert len(adapter.prototypes) == 0
    embeddings, positions = (tensor.clone() for tensor in adapter.queue.content())
    assert positions.tolist() == list(range(2, 12))
    change(adapter, batches[2])
    chosen = select_mmd(embeddings, 4, 2.0)
    assert torch.equal(adapter.prototypes.current, embeddings[chosen])
    assert torch.equal(adapter.prototypes.positions[:4], positions[chosen])
    assert adapter.queue.content()[1].tolist() == list(range(12, 18))
    adapter(batches[3])
    assert adapter.queue.content()[1].tolist() == list(range(14, 24))


@pytest.mark.parametrize(
    ("settings", "first"),
    [({"predict": "student"}, 1), ({"predict": "teacher"}, 1), ({"as_released": True, "predict": "student"}, 3)],
    ids=str,
)
def test_the_detector_uses_the_confidence_of_the_returned_prediction(
    vit: VisionModel, settings: dict[str, Any], first: int
) -> None:
    adapter = make(vit, threshold=0.0, **settings)
    batches = stream(adapter, 4)
    for k, images in enumerate(batches):
        with torch.no_grad():
            expected = adapter.predict(images).softmax(1).amax(1).mean()
        adapter(images)
        assert adapter.diagnostics["confidence"] == pytest.approx(float(expected), rel=1e-5)
        assert adapter.detector.past[-1] == pytest.approx(float(expected), rel=1e-5)
        assert adapter.diagnostics["change"] is (k >= first)


@pytest.mark.parametrize("domains", [1, 3])
def test_several_domains_have_prototypes_of_their_own(vit: VisionModel, domains: int) -> None:
    adapter = make(vit, previous_domains=domains, prototypes=5)
    batches = stream(adapter, 6, 6)
    adapter(batches[0])
    for k, images in enumerate(batches[1:], 1):
        change(adapter, images)
        stored = min(k, domains)
        assert len(adapter.prototypes) == 5 * stored
        sources = (adapter.prototypes.positions[: 5 * stored] // 6).tolist()
        assert sources == [d for d in range(k - stored, k) for _ in range(5)]


def plain_union(rows: list[list[float]], weights: list[float], count: int, gamma: float) -> list[int]:
    """Greedy choice for a weighted set: each candidate's squared MMD to the set, from scratch."""

    def kernel(a: list[float], b: list[float]) -> float:
        return math.exp(-gamma * sum((x - y) ** 2 for x, y in zip(a, b, strict=True)))

    def distance(chosen: list[int]) -> float:
        across = sum(w * kernel(row, rows[j]) for w, row in zip(weights, rows, strict=True) for j in chosen)
        within = sum(kernel(rows[i], rows[j]) for i in chosen for j in chosen)
        return within / len(chosen) ** 2 - 2 * across / sum(weights) / len(chosen)

    chosen: list[int] = []
    while len(chosen) < count:
        chosen.append(min((i for i in range(len(rows)) if i not in chosen), key=lambda i: distance([*chosen, i])))
    return chosen


def test_all_domains_share_one_set_of_prototypes(vit: VisionModel) -> None:
    """Every prototype counts as its share of the embeddings that were there when it was chosen."""
    adapter = make(vit, previous_domains=0, prototypes=4, gamma=2.0, queue_length=10, prototype_update=False)
    batches = stream(adapter, 8, 6)
    represented = 0
    for k in range(0, 8, 2):
        adapter(batches[k])
        old, places = (
            adapter.prototypes.current.clone(),
            adapter.prototypes.positions[: len(adapter.prototypes)].clone(),
        )
        new, positions = (tensor.clone() for tensor in adapter.queue.content())
        change(adapter, batches[k + 1])
        rows, weights = torch.cat([old, new]), [represented / 4] * len(old) + [1.0] * len(new)
        chosen = plain_union(rows.tolist(), weights, 4, 2.0)
        assert torch.equal(adapter.prototypes.current, rows[chosen])
        assert torch.equal(adapter.prototypes.positions, torch.cat([places, positions])[chosen])
        represented += len(new)
    assert len(adapter.prototypes) == 4
    assert adapter.prototypes.represented == represented
    assert int(adapter.prototypes.positions.min()) < 36, "only the last domain is represented"


def test_before_the_first_change_there_are_no_prototypes_to_move(vit: VisionModel) -> None:
    adapter = make(vit)
    adapter(stream(adapter, 1)[0])
    assert len(adapter.prototypes) == 0
    assert {"discrimination_loss", "invariance_loss"} <= adapter.diagnostics.keys()
    assert "prototype_drift" not in adapter.diagnostics
