"""Small batches: predicted at once, gathered, and learnt from together."""

from typing import Any

import torch
from testdg_cases import make
from torch import Tensor

from testdg.methods.testdg import TestDG
from testdg.models import VisionModel
from testdg.testing import same_state, stream


def weights(adapter: TestDG) -> list[Tensor]:
    return [p.clone() for p in (*adapter.model.parameters(), *adapter.teacher.parameters())]


def test_small_batches_are_learnt_from_together(vit: VisionModel) -> None:
    """Ten images in pieces give the weights that they give at once, and each piece is predicted before."""
    whole, pieces = make(vit, gather=10, view="same"), make(vit, gather=10, view="same")
    images = stream(whole, 1, 10)[0]
    before = whole.predict(images)
    torch.testing.assert_close(whole(images), before)
    start = weights(pieces)
    for part in (images[:3], images[3:6]):
        torch.testing.assert_close(pieces(part), pieces.predict(part))
        assert all(map(torch.equal, weights(pieces), start))
    torch.testing.assert_close(pieces(images[6:]), before[6:])
    assert not pieces.waiting.content()
    assert not all(map(torch.equal, weights(pieces), start))
    for mine, other in zip(weights(pieces), weights(whole), strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-4, atol=1e-6)


def test_a_student_predicts_small_batches_too(vit: VisionModel) -> None:
    adapter = make(vit, gather=4, predict="student")
    images = stream(adapter, 1, 6)[0]
    for part in (images[:2], images[2:4], images[4:]):
        expected = adapter.predict(part)
        torch.testing.assert_close(adapter(part), expected)


def test_images_of_another_size_do_not_wait_together(vit: VisionModel) -> None:
    adapter = make(vit, gather=4)
    images = stream(adapter, 1, 3)[0]
    adapter(images)
    kept = adapter.waiting.gather(images[:, :, :16], images.sum((2, 3)), images.sum((1, 2, 3)))
    assert kept is None
    assert [len(value) for value in adapter.waiting.content()] == [3, 3, 3]
    assert adapter.waiting.content()[0].shape[2] == 16


def test_waiting_images_survive_a_restart(vit: VisionModel, tmp_path: Any) -> None:
    adapter = make(vit, gather=8)
    first, second = stream(adapter, 2, 5)
    adapter(first)
    adapter.save(tmp_path / "state")
    again = TestDG.load(tmp_path / "state", vit)
    torch.testing.assert_close(again(second), adapter(second), rtol=0, atol=0)
    assert same_state(again, adapter) is None
    adapter(first)
    assert adapter.waiting.content()
    adapter.reset()
    assert not adapter.waiting.content()
