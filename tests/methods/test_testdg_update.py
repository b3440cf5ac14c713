"""Section 3.4: distances between sets, and prototypes that follow the model."""

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from testdg.methods.testdg.released import mean_chamfer, noise_prototypes
from testdg.methods.testdg.update import (
    DISTANCES,
    chamfer,
    update_loss,
    update_prototypes,
)

Rows = list[list[float]]
A = [[0.0, 0.0], [1.0, 0.0]]
B = [[0.0, 0.0], [0.0, 2.0], [3.0, 0.0]]
DISTANCE_NAMES = ["chamfer", "mmd", "hausdorff"]


def tensor(rows: Rows) -> Tensor:
    return torch.tensor(rows, dtype=torch.float64)


def normal(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def squared(a: list[float], b: list[float]) -> float:
    return sum((x - y) ** 2 for x, y in zip(a, b, strict=True))


def literal_chamfer(f: Rows, p: Rows) -> float:
    """Equation 8, letter by letter."""
    return sum(min(squared(b, a) for b in p) for a in f) + sum(min(squared(b, a) for a in f) for b in p)


def literal_hausdorff(f: Rows, p: Rows) -> float:
    one = max(min(math.dist(a, b) for b in p) for a in f)
    return max(one, max(min(math.dist(a, b) for a in f) for b in p))


def literal_mmd2(f: Rows, p: Rows, gamma: float) -> float:
    def mean(x: Rows, y: Rows) -> float:
        return sum(math.exp(-gamma * squared(a, b)) for a in x for b in y) / (len(x) * len(y))

    return mean(f, f) - 2 * mean(f, p) + mean(p, p)


def literal_mmd_distance(f: Rows, p: Rows) -> float:
    """Squared MMD; the kernel is as wide as the median squared distance between prototypes."""
    distances = sorted(squared(a, b) for a, b in itertools.combinations(p, 2))
    return literal_mmd2(f, p, 1 / distances[(len(distances) - 1) // 2])


LITERAL = {"chamfer": literal_chamfer, "mmd": literal_mmd_distance, "hausdorff": literal_hausdorff}
sets = given(
    seed=st.integers(0, 2**31), images=st.integers(1, 7), prototypes=st.integers(2, 7), width=st.integers(1, 4)
)


@settings(max_examples=30, deadline=None)
@sets
def test_distances_and_update_loss_are_the_formulas(seed: int, images: int, prototypes: int, width: int) -> None:
    before, after = normal(seed, images, width), normal(seed + 1, images, width)
    previous, moved = normal(seed + 2, prototypes, width), normal(seed + 3, prototypes, width)
    for name, distance in DISTANCES.items():
        old = LITERAL[name](before.tolist(), previous.tolist())
        new = LITERAL[name](after.tolist(), moved.tolist())
        assert float(distance(before, previous)) == pytest.approx(old, rel=1e-6, abs=1e-9)
        found = float(update_loss(distance, before, after, previous, moved))
        assert found == pytest.approx(abs(old - new), rel=1e-6, abs=1e-9)


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**31),
    name=st.sampled_from(DISTANCE_NAMES),
    images=st.integers(1, 8),
    prototypes=st.integers(1, 8),
    steps=st.integers(1, 6),
    learning_rate=st.sampled_from([1e-3, 0.01, 0.3, 10.0]),
)
def test_an_update_never_widens_the_gap(
    seed: int, name: str, images: int, prototypes: int, steps: int, learning_rate: float
) -> None:
    before, after = normal(seed, images, 4).float(), normal(seed + 1, images, 4).float()
    previous = normal(seed + 2, prototypes, 4).float()
    kept = previous.clone()
    moved = update_prototypes(DISTANCES[name], before, after, previous, learning_rate, steps)
    start, end = (update_loss(DISTANCES[name], before, after, previous, p) for p in (previous, moved))
    assert end <= start
    assert torch.equal(previous, kept)
    assert not moved.requires_grad


@pytest.mark.parametrize("name", DISTANCE_NAMES)
@pytest.mark.parametrize("images", [1, 3, 40])
def test_prototypes_stay_where_they_are_when_the_model_does(name: str, images: int) -> None:
    embeddings, previous = normal(0, images, 16).float(), normal(1, 40, 16).float()
    moved = update_prototypes(DISTANCES[name], embeddings, embeddings.clone(), previous, 0.01, 5)
    assert torch.equal(moved, previous)


def test_steps_are_those_of_adam_from_where_the_prototypes_are() -> None:
    before, previous = normal(0, 20, 4), normal(1, 8, 4)
    after = 2 * before
    prototypes = previous.clone().requires_grad_(True)
    optimizer = torch.optim.Adam([prototypes], lr=1e-3)
    for steps in range(1, 6):
        optimizer.zero_grad()
        update_loss(chamfer, before, after, previous, prototypes).backward()
        optimizer.step()
        moved = update_prototypes(chamfer, before, after, previous, 1e-3, steps)
        torch.testing.assert_close(moved, prototypes.detach(), rtol=1e-9, atol=1e-9)


def test_a_step_that_is_too_long_is_left_out() -> None:
    before, previous = normal(0, 20, 4), normal(1, 8, 4)
    assert torch.equal(update_prototypes(chamfer, before, 1.01 * before, previous, 100.0, 3), previous)


def test_embeddings_that_are_not_finite_leave_the_prototypes_alone() -> None:
    before, previous = normal(0, 5, 4), normal(1, 8, 4)
    after = before.clone()
    after[2, 1] = torch.nan
    assert torch.equal(update_prototypes(chamfer, before, after, previous, 0.01, 2), previous)


def test_update_is_exact_under_autocast() -> None:
    before, previous = normal(0, 20, 16).float() + 3, normal(1, 8, 16).float() + 3
    expected = update_prototypes(chamfer, before, 1.1 * before, previous, 0.01, 2)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(update_prototypes(chamfer, before, 1.1 * before, previous, 0.01, 2), expected)


# As released


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("steps", [1, 3])
def test_released_steps_are_each_the_first_of_an_adam(steps: int) -> None:
    before, previous = normal(0, 20, 4), normal(1, 8, 4)
    after = 2 * before
    prototypes = torch.randn(8, 4, generator=seeded(), dtype=torch.float64).requires_grad_(True)
    for _ in range(steps):
        optimizer = torch.optim.Adam([prototypes], lr=0.008)
        optimizer.zero_grad()
        (mean_chamfer(before, previous) - mean_chamfer(after, prototypes)).abs().backward()
        optimizer.step()
    moved = noise_prototypes(mean_chamfer, before, after, previous, 0.008, steps, seeded())
    torch.testing.assert_close(moved, prototypes.detach(), rtol=1e-9, atol=1e-9)


def test_released_prototypes_survive_embeddings_that_are_not_finite() -> None:
    before, previous = normal(0, 5, 4), normal(1, 8, 4)
    after = torch.full_like(before, torch.nan)
    assert bool(noise_prototypes(mean_chamfer, before, after, previous, 0.01, 2, seeded()).isfinite().all())
