"""TestDG and the stream: what a change of domain does."""

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
