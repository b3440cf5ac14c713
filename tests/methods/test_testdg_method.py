"""TestDG as a whole: what a change of domain does, and its maps; whole batches: `test_testdg_reference`."""

from typing import Any

import pytest
import torch

from support.networks import segformer
from support.testdg_cases import change, copied, make, moved, second_domain
from testdg.methods.testdg.learning import domain_features
from testdg.methods.testdg.selection import select_mmd
from testdg.models import VisionModel
from testdg.testing import stream


@pytest.mark.parametrize("distance", ["chamfer", "mmd", "hausdorff"])
def test_without_the_update_prototypes_stay(vit: VisionModel, distance: str) -> None:
    """The batches are of another domain than the prototypes, so that the model moves, and prototypes follow."""
    still, batches = second_domain(vit, prototype_update=False, distance=distance)
    before = copied(still)
    for images in batches:
        still(images)
    assert "prototypes" not in moved(still, before)
    follows, batches = second_domain(vit, prototype_update=True, distance=distance, prototype_learning_rate=1e-3)
    before = copied(follows)
    for images in batches:
        follows(images)
    assert "prototypes" in moved(follows, before)


# TestDG and the stream: what a change of domain does


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


# TestDG, TENT and Source on models that predict pixels


DENSE = {"grid": 2}


def test_every_cell_of_the_grid_has_an_embedding() -> None:
    features = torch.arange(2 * 3 * 4 * 6, dtype=torch.float32).view(2, 3, 4, 6)
    cells = domain_features(features, 2)
    assert cells.shape == (8, 3)
    assert torch.equal(cells[1], features[0, :, :2, 3:].mean((1, 2)))  # first image, upper right
    adapter = make(segformer(), **DENSE)
    adapter(stream(adapter, 1, 3)[0])
    assert len(adapter.queue) == 3 * 4
    assert adapter.queue.content()[1].tolist() == [0] * 4 + [1] * 4 + [2] * 4


def test_the_amplifier_is_in_the_attention_of_every_stage() -> None:
    adapter = make(segformer(), **DENSE)
    assert adapter.amplifier is not None
    names = [name for layers in adapter.amplifier.layers.values() for name in layers]
    assert sorted(names) == sorted(name for group in adapter.model.attention_linears() for name in group)
    assert len(names) == 4 * 4  # query, key, value and output of four blocks
