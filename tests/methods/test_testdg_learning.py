"""Section 3.3: the losses of the two steps, against the formulas of the paper written out in plain Python."""

import itertools
import math
from collections import Counter

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from testdg.methods.testdg.learning import (
    discrimination_loss,
    domain_accuracy,
    domain_features,
    invariance_loss,
    mlp,
)

Rows = list[list[float]]


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def normal(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=seeded(seed), dtype=torch.float64)


# L_dis


def literal_discrimination(current: list[float], previous: list[float]) -> float:
    """Equation 5 with the probabilities of the discriminator."""
    first = sum(math.log(d) for d in current) / len(current)
    return -(first + sum(math.log(1 - d) for d in previous) / len(previous))


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 2**31), images=st.integers(1, 6), prototypes=st.integers(1, 6))
def test_discrimination_is_half_the_formula(seed: int, images: int, prototypes: int) -> None:
    current, previous = normal(seed, images, 1), normal(seed + 1, prototypes, 1)
    given_ = current.sigmoid().flatten().tolist(), previous.sigmoid().flatten().tolist()
    assert float(discrimination_loss(current, previous)) == pytest.approx(literal_discrimination(*given_) / 2)


def test_domain_accuracy_weighs_the_sets_alike() -> None:
    right, wrong = torch.ones(3, 1), -torch.ones(1, 1)
    assert float(domain_accuracy(right, wrong)) == 1
    assert float(domain_accuracy(torch.cat([right, wrong]), wrong)) == pytest.approx((0.75 + 1) / 2)
    assert float(domain_accuracy(torch.ones(30, 1), torch.ones(1, 1))) == 0.5


# L_inv


def literal_invariance(current: Rows, prototypes: Rows, order: tuple[int, ...]) -> float:
    """Equation 6 for pairs (f_i, p_order[i]), divided by the width; prototypes go round when they are few."""
    total = 0.0
    for i, embedding in enumerate(current):
        prototype = prototypes[order[i % len(order)]]
        total += sum(abs(f - p) for f, p in zip(embedding, prototype, strict=True))
    return total / len(current) / len(current[0])


@pytest.mark.parametrize(("images", "prototypes"), [(4, 4), (6, 3), (5, 3), (2, 4), (1, 3)])
def test_invariance_is_the_formula_for_a_random_order_of_the_prototypes(images: int, prototypes: int) -> None:
    f, p = normal(0, images, 3), normal(1, prototypes, 3)
    orders = list(itertools.permutations(range(prototypes)))
    values = [literal_invariance(f.tolist(), p.tolist(), order) for order in orders]
    counts: Counter[float] = Counter()
    for seed in range(600):
        loss = float(invariance_loss(f, p, seeded(seed)))
        nearest = min(values, key=lambda value: abs(value - loss))
        assert loss == pytest.approx(nearest, rel=1e-12)
        counts[round(nearest, 9)] += 1
    distinct = Counter(round(value, 9) for value in values)
    for value, orders_with_it in distinct.items():
        share = orders_with_it / len(orders)
        assert abs(counts[value] - 600 * share) < 4.5 * (600 * share * (1 - share)) ** 0.5


# Parts


def test_features_of_maps_are_means_of_cells() -> None:
    maps = torch.arange(2 * 3 * 4 * 4.0).view(2, 3, 4, 4)
    cells = domain_features(maps, 2)
    assert cells.shape == (2 * 4, 3)
    torch.testing.assert_close(cells[5], maps[1, :, :2, 2:].mean((1, 2)))
    torch.testing.assert_close(domain_features(maps), maps.mean((2, 3)))
    vectors = torch.rand(2, 3)
    assert torch.equal(domain_features(vectors, 4), vectors)


def test_networks_are_drawn_from_the_given_generator() -> None:
    torch.manual_seed(0)
    one = mlp([6, 8, 4], nn.ReLU, seeded(3))
    torch.manual_seed(1)
    again, other = mlp([6, 8, 4], nn.ReLU, seeded(3)), mlp([6, 8, 4], nn.ReLU, seeded(4))
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), again.parameters(), strict=True))
    assert not torch.equal(next(one.parameters()), next(other.parameters()))
    assert one(torch.rand(5, 6)).shape == (5, 4)
