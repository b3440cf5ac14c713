import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from testdg.data.stream import Sampling

LABELS = torch.arange(10).repeat(60)  # 600 images, classes in turn


def runs(labels: torch.Tensor) -> int:
    """Number of stretches of one class."""
    return 1 + int((labels[1:] != labels[:-1]).sum())


@settings(max_examples=50, deadline=None)
@given(
    labels=st.lists(st.integers(0, 5), min_size=1, max_size=40),
    kind=st.sampled_from(["file", "mixed", "dirichlet"]),
    concentration=st.floats(1e-6, 1e6),
    seed=st.integers(0, 2**32 - 1),
)
def test_every_order_is_a_permutation(labels: list[int], kind: str, concentration: float, seed: int) -> None:
    order = Sampling(kind, concentration, seed).order(torch.tensor(labels), 3)  # type: ignore[arg-type]
    assert sorted(order.tolist()) == list(range(len(labels)))


def test_the_order_depends_on_seed_and_number_alone() -> None:
    for kind in ("mixed", "dirichlet"):
        orders = [Sampling(kind, seed=seed).order(LABELS, number) for seed, number in [(0, 0), (0, 1), (1, 0)]]
        assert torch.equal(orders[0], Sampling(kind).order(LABELS, 0))
        assert not any(torch.equal(orders[0], other) for other in orders[1:])
    assert Sampling("file", seed=7).order(LABELS, 2).tolist() == list(range(600))


def test_a_small_concentration_bunches_classes_and_a_large_one_does_not() -> None:
    found = [runs(LABELS[Sampling("dirichlet", delta).order(LABELS, 0)]) for delta in (1e-4, 0.1, 1.0, 1e4)]
    assert found == sorted(found)
    assert found[0] < 300  # nearly every class wholly in one slot; a few share one
    assert found[3] == pytest.approx(540, abs=30)  # 9 of 10 neighbours differ, as after a plain shuffle


def test_a_large_concentration_gives_every_slot_its_share() -> None:
    shown = LABELS[Sampling("dirichlet", 1e6).order(LABELS, 0)]
    for slot in shown.split(60):
        assert np.abs(np.bincount(slot, minlength=10) - 6).max() <= 1
