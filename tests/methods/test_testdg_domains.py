"""TestDG and the stream: what a change of domain does."""

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


@pytest.mark.parametrize("released", [False, True])
def test_the_detector_hears_the_confidence_of_what_is_returned(vit: VisionModel, released: bool) -> None:
    adapter = make(vit, threshold=0.0, as_released=released)
    batches = stream(adapter, 4)
    for k, images in enumerate(batches):
        with torch.no_grad():
            expected = adapter.predict(images).softmax(1).amax(1).mean()
        adapter(images)
        assert adapter.diagnostics["confidence"] == pytest.approx(float(expected), rel=1e-5)
        assert adapter.detector.past[-1] == pytest.approx(float(expected), rel=1e-5)
        assert adapter.diagnostics["change"] is (k > int(released))


@pytest.mark.parametrize("domains", [1, 3])
def test_prototypes_of_several_domains_are_kept(vit: VisionModel, domains: int) -> None:
    adapter = make(vit, previous_domains=domains, prototypes=5)
    batches = stream(adapter, 6, 6)
    adapter(batches[0])
    for k, images in enumerate(batches[1:], 1):
        change(adapter, images)
        held = min(k, domains)
        assert len(adapter.prototypes) == 5 * held
        sources = (adapter.prototypes.positions[: 5 * held] // 6).tolist()
        assert sources == [d for d in range(k - held, k) for _ in range(5)]


def test_before_the_first_change_there_are_no_prototypes_to_move(vit: VisionModel) -> None:
    adapter = make(vit)
    adapter(stream(adapter, 1)[0])
    assert len(adapter.prototypes) == 0
    assert {"discrimination_loss", "invariance_loss"} <= adapter.diagnostics.keys()
    assert "prototype_drift" not in adapter.diagnostics
