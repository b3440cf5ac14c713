"""Section 3.2: kernel, squared MMD, score J and the greedy choice of prototypes."""

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from testdg.methods.testdg import selection
from testdg.methods.testdg.selection import greedy, median_gamma, mmd2, rbf, score, select, select_mmd

Points = list[list[float]]


def kernel(a: list[float], b: list[float], gamma: float) -> float:
    return math.exp(-gamma * sum((x - y) ** 2 for x, y in zip(a, b, strict=True)))


def literal_mmd2(f: Points, p: Points, gamma: float) -> float:
    """Equation 1, letter by letter."""
    first = sum(kernel(a, b, gamma) for a in f for b in f) / len(f) ** 2
    second = 2 / (len(f) * len(p)) * sum(kernel(a, b, gamma) for a in f for b in p)
    third = sum(kernel(a, b, gamma) for a in p for b in p) / len(p) ** 2
    return first - second + third


def literal_score(f: Points, chosen: list[int], gamma: float) -> float:
    """Equation 2, letter by letter."""
    p = [f[i] for i in chosen]
    first = 2 / (len(f) * len(p)) * sum(kernel(a, b, gamma) for a in f for b in p)
    return first - sum(kernel(a, b, gamma) for a in p for b in p) / len(p) ** 2


def literal_greedy(f: Points, count: int, gamma: float) -> list[int]:
    """Add, `count` times, the point that makes J largest."""
    chosen: list[int] = []
    for _ in range(count):
        free = [c for c in range(len(f)) if c not in chosen]
        chosen.append(max(free, key=lambda c: literal_score(f, [*chosen, c], gamma)))
    return chosen


def points(seed: int, count: int, width: int, spread: float = 1.0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return spread * torch.randn(count, width, generator=generator, dtype=torch.float64)


problems = given(seed=st.integers(0, 2**31), width=st.integers(1, 5), gamma=st.floats(0.01, 10))


@settings(max_examples=40, deadline=None)
@problems
def test_mmd2_and_score_are_the_formulas_of_the_paper(seed: int, width: int, gamma: float) -> None:
    x, y = points(seed, 9, width), points(seed + 1, 5, width)
    assert float(mmd2(x, y, gamma)) == pytest.approx(literal_mmd2(x.tolist(), y.tolist(), gamma), abs=1e-12)
    chosen = [7, 0, 3]
    found = float(score(x, torch.tensor(chosen), gamma))
    assert found == pytest.approx(literal_score(x.tolist(), chosen, gamma), abs=1e-12)
    assert float(rbf(x, x, gamma).mean() - mmd2(x, x[chosen], gamma)) == pytest.approx(found, abs=1e-12)


def test_greedy_on_the_worked_example_with_a_triangular_kernel() -> None:
    k = torch.tensor([[1, 0.75, 0], [0.75, 1, 0.25], [0, 0.25, 1]], dtype=torch.float64)
    barred = k.clone().fill_diagonal_(torch.inf)
    assert greedy(k.mean(0), lambda best: barred[best], 3).tolist() == [1, 2, 0]


def test_greedy_on_the_worked_example_with_the_rbf_kernel() -> None:
    x = torch.tensor([[0, 0], [1, 0], [0, 1], [4, 4], [5, 4], [9, 0]], dtype=torch.float64)
    chosen = select_mmd(x, 4, 0.1)
    assert chosen.tolist() == [0, 3, 5, 1]
    scores = [float(score(x, chosen[: t + 1], 0.1)) for t in range(4)]
    assert scores == pytest.approx([-0.044229, 0.311895, 0.326439, 0.360998], abs=1e-6)
    gaps = [float(mmd2(x, x[chosen[: t + 1]], 0.1)) for t in range(4)]
    assert gaps == pytest.approx([0.426921, 0.070797, 0.056253, 0.021694], abs=1e-6)


@pytest.mark.parametrize("chunk", [4096, 5])
def test_greedy_is_brute_force_greedy(chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(selection, "CHUNK", chunk)
    draw = torch.Generator().manual_seed(0)
    for seed in range(200):
        gamma = float(10 ** (3 * torch.rand((), generator=draw) - 2))
        x = points(seed, 12, 1 + seed % 4)
        assert select_mmd(x, 7, gamma).tolist() == literal_greedy(x.tolist(), 7, gamma), f"problem {seed}, {gamma}"


def test_median_heuristic_is_one_over_the_median_squared_distance() -> None:
    x = points(3, 9, 2)
    distances = sorted(float((a - b).square().sum()) for a, b in itertools.combinations(x, 2))
    assert float(median_gamma(x)) == pytest.approx(1 / distances[(len(distances) - 1) // 2])
    assert float(median_gamma(x[:1])) == 1
    assert float(median_gamma(torch.zeros(4, 2))) == 1


def test_equal_embeddings_can_be_selected_from() -> None:
    x = torch.ones(9, 4)
    assert sorted(select_mmd(x, 20).tolist()) == list(range(9))


def test_distances_keep_their_digits_under_autocast() -> None:
    x = points(0, 20, 16).float() + 3
    with torch.autocast("cpu", torch.bfloat16):
        inside = mmd2(x, x + 0.1, 0.1)
    assert torch.equal(inside, mmd2(x, x + 0.1, 0.1))


@pytest.mark.parametrize("strategy", ["mmd", "random", "fifo", "reservoir"])
@pytest.mark.parametrize(("held", "count"), [(1, 40), (7, 40), (40, 40), (64, 40)])
def test_strategies_choose_without_repeating(strategy: str, held: int, count: int) -> None:
    chosen = select(strategy, points(0, held, 4), count, None, torch.Generator().manual_seed(0)).tolist()
    assert len(chosen) == len(set(chosen)) == min(held, count)
    assert set(chosen) <= set(range(held))


def test_fifo_chooses_the_newest() -> None:
    assert select("fifo", points(0, 10, 2), 3, None, torch.Generator()).tolist() == [7, 8, 9]


def test_random_choice_is_seeded_and_even() -> None:
    x, generator = points(0, 12, 2), torch.Generator().manual_seed(0)
    one, other = (select("random", x, 4, None, torch.Generator().manual_seed(5)) for _ in range(2))
    assert torch.equal(one, other)
    counts = torch.bincount(torch.cat([select("random", x, 4, None, generator) for _ in range(1500)]), minlength=12)
    deviation = (500 * (1 - 4 / 12)) ** 0.5
    assert (counts - 500).abs().max() < 4 * deviation
