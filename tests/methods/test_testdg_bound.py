"""How much L_inv may add to self-training, and when."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from testdg_cases import change, make
from torch import Tensor

from testdg.methods.testdg.learning import bounded_sum
from testdg.models import VisionModel
from testdg.testing import stream


@settings(deadline=None)
@given(seed=st.integers(0, 2**16), share=st.floats(0, 3), length=st.floats(1e-6, 1e6))
def test_what_is_added_points_along_the_pull_and_is_as_long_as_it_may_be(
    seed: int, share: float, length: float
) -> None:
    generator = torch.Generator().manual_seed(seed)
    gradient, pull = (torch.randn(4, 5, generator=generator, dtype=torch.float64) for _ in range(2))
    pull = pull * (length / pull.norm())
    (total,) = bounded_sum([gradient], [pull], share)
    assert total is not None
    expected = min(length, share * float(gradient.norm()))
    torch.testing.assert_close(total - gradient, pull * (expected / length), rtol=1e-6, atol=1e-9)


def test_each_weight_has_a_bound_of_its_own() -> None:
    gradients = [torch.tensor([3.0, 4.0]), torch.tensor([0.0, 0.1])]
    pulls = [torch.tensor([0.0, 1.0]), torch.tensor([2.0, 0.0])]
    first, second = bounded_sum(gradients, pulls, 0.5)
    torch.testing.assert_close(first, torch.tensor([3.0, 5.0]))
    torch.testing.assert_close(second, torch.tensor([0.05, 0.1]))


def test_weights_that_one_of_the_losses_does_not_reach() -> None:
    one = torch.ones(2)
    assert bounded_sum([one, None, None], [None, one, None], 1.0) == [one, None, None]


def test_no_pull_is_no_division_by_nothing() -> None:
    (total,) = bounded_sum([torch.ones(2)], [torch.zeros(2)], 0.3)
    torch.testing.assert_close(total, torch.ones(2))


def weights(model: VisionModel, **chosen: object) -> list[Tensor]:
    """Encoder and head after a few batches of a second domain."""
    adapter = make(model, prototype_update=False, **chosen)
    first, *rest = stream(adapter, 4)
    adapter(first)
    for images in rest:
        change(adapter, images)
    return [p.detach().clone() for p in adapter.model.parameters()]


@pytest.mark.parametrize("amplifier", [False, True])
def test_nothing_may_be_added_or_anything(vit: VisionModel, amplifier: bool) -> None:
    common = {"amplifier": amplifier, "pairing": "sorted", "optimizer": "sgd"}  # Adam magnifies rounding
    alone = weights(vit, invariance=False, **common)
    unbounded = weights(vit, **common)
    torch.testing.assert_close(weights(vit, invariance_share=0.0, **common), alone)
    torch.testing.assert_close(weights(vit, invariance_share=1e9, **common), unbounded)
    some = weights(vit, invariance_share=0.1, **common)
    for other in (alone, unbounded):
        assert not all(torch.equal(a, b) for a, b in zip(some, other, strict=True))


def test_invariance_can_be_left_to_the_first_batches_of_a_domain(vit: VisionModel) -> None:
    adapter = make(vit, invariance_batches=2)
    seen = []
    for place, images in enumerate(stream(adapter, 7)):
        change(adapter, images) if place == 3 else adapter(images)
        seen.append("invariance_loss" in adapter.diagnostics)
    assert seen == [True, True, False, True, True, False, False]
