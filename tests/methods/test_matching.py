"""Distance between values of the same rank, against plain Python."""

import itertools

import pytest
import torch
from torch import Tensor

from testdg.methods.parts.matching import sorted_distance

Rows = list[list[float]]


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def normal(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=seeded(seed), dtype=torch.float64)


def literal_sorted(current: Rows, reference: Rows) -> float:
    """Mean over dimensions of the distance between values of the same rank (of the same quantile)."""
    total, n, m = 0.0, len(current), len(reference)
    for column, other in zip(zip(*current, strict=True), zip(*reference, strict=True), strict=True):
        ordered, targets = sorted(column), sorted(other)
        for i, value in enumerate(ordered):
            rank = min(max((i + 0.5) * m / n - 0.5, 0.0), m - 1.0)
            low = int(rank)
            high = min(low + 1, m - 1)
            total += abs(value - (targets[low] + (rank - low) * (targets[high] - targets[low])))
    return total / n / len(current[0])


@pytest.mark.parametrize(("images", "reference"), [(4, 4), (7, 3), (3, 7), (40, 40), (2, 5), (6, 1)])
def test_values_are_paired_by_rank(images: int, reference: int) -> None:
    f, p = normal(0, images, 3), normal(1, reference, 3)
    assert float(sorted_distance(f, p)) == pytest.approx(literal_sorted(f.tolist(), p.tolist()), rel=1e-5)


def test_pairs_by_rank_are_the_nearest_pairing_of_one_dimension() -> None:
    f, p = normal(0, 5, 1), normal(1, 5, 1)
    best = min(float((f - p[list(order)]).abs().mean()) for order in itertools.permutations(range(5)))
    assert float(sorted_distance(f, p)) == pytest.approx(best)
    shuffled = f[torch.randperm(5, generator=seeded())]
    assert float(sorted_distance(f, shuffled)) == pytest.approx(0, abs=1e-6)


def test_a_single_point_is_paired_with_the_medians() -> None:
    f, p = normal(0, 1, 3), normal(1, 5, 3)
    expected = (f[0] - p.median(0).values).abs().mean()
    assert float(sorted_distance(f, p)) == pytest.approx(float(expected))


@pytest.mark.parametrize(("images", "reference"), [(4, 4), (6, 3), (3, 5)])
def test_every_value_is_pulled_alike(images: int, reference: int) -> None:
    """Central differences, and the size of the gradient of a mean of absolute values."""
    f, p = normal(0, images, 3), normal(1, reference, 3)
    at = f.clone().requires_grad_(True)
    (gradient,) = torch.autograd.grad(sorted_distance(at, p), at)
    expected = torch.zeros_like(f)
    for i, j in itertools.product(range(images), range(3)):
        step = torch.zeros_like(f)
        step[i, j] = 1e-6
        expected[i, j] = (sorted_distance(f + step, p) - sorted_distance(f - step, p)) / 2e-6
    torch.testing.assert_close(gradient, expected, rtol=1e-6, atol=1e-8)
    torch.testing.assert_close(gradient.abs(), torch.full_like(gradient, 1 / gradient.numel()))
