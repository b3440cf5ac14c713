"""Measures of predictions."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from testdg.methods.parts.entropy import effective_classes, entropy, opinion_entropy


@pytest.mark.parametrize(
    ("mix", "classes"),
    [([1.0, 0.0, 0.0, 0.0], 1.0), ([0.5, 0.5, 0.0, 0.0], 2.0), ([0.25] * 4, 4.0), ([0.5, 0.25, 0.25, 0.0], 2**1.5)],
)
def test_a_mix_amounts_to_so_many_classes(mix: list[float], classes: float) -> None:
    assert float(effective_classes(torch.tensor(mix))) == pytest.approx(classes, rel=1e-4)


LOGITS = st.lists(st.floats(-8, 8, width=32), min_size=2, max_size=8).filter(lambda row: math.hypot(*row) > 0.1)


def opinion_gradient(row: list[float]) -> Tensor:
    logits = torch.tensor([row], requires_grad=True)
    (gradient,) = torch.autograd.grad(opinion_entropy(logits).sum(), logits)
    return gradient[0]


@pytest.mark.parametrize(
    ("row", "opinion", "plain"),
    [
        ([2.0, 0.0, -1.0], 0.958433, 0.524267),
        ([5.0, 0.0, -1.0], 0.152787, 0.057293),
        ([0.0, 0.0, 0.0], 1.242453, math.log(3)),
        ([-10.0, -10.0, -10.0], 0.000549, 1.098612),  # knowing nothing looks like being sure
        ([math.log(3)] * 3, math.log(4), math.log(3)),  # the largest there is
    ],
)
def test_opinions_are_the_worked_numbers(row: list[float], opinion: float, plain: float) -> None:
    logits = torch.tensor([row])
    assert float(opinion_entropy(logits)) == pytest.approx(opinion, abs=1e-6)
    assert float(entropy(logits)) == pytest.approx(plain, abs=1e-6)


@pytest.mark.parametrize("classes", [10, 100, 1000])
def test_logits_of_zero_are_half_unsure_and_have_a_gradient(classes: int) -> None:
    assert float(opinion_entropy(torch.zeros(1, classes))) == pytest.approx(math.log(2) + 0.5 * math.log(classes))
    assert bool(opinion_gradient([0.0] * classes).isfinite().all())


def test_the_gradient_of_an_opinion_is_the_worked_numbers() -> None:
    row = torch.tensor([2.0, 0.0, -1.0])
    gradient = opinion_gradient([2.0, 0.0, -1.0])
    torch.testing.assert_close(gradient, torch.tensor([-0.030727, 0.128096, -0.061455]), atol=1e-6, rtol=0)
    assert float(opinion_entropy((row - gradient)[None])) == pytest.approx(0.937610, abs=1e-6)


@settings(deadline=None, max_examples=50)
@given(LOGITS)
def test_an_opinion_never_asks_for_longer_logits(row: list[float]) -> None:
    gradient, logits = opinion_gradient(row), torch.tensor(row)
    assert abs(float(gradient @ logits)) <= 1e-4 * float(logits.norm())


@settings(deadline=None, max_examples=50)
@given(LOGITS)
def test_an_opinion_is_a_prediction_with_one_class_more(row: list[float]) -> None:
    values = torch.tensor(row, dtype=torch.float64)
    masses = torch.cat([values.exp(), torch.tensor([float(len(row))])]) / (values.exp().sum() + len(row))
    assert float(masses.sum()) == pytest.approx(1)
    assert float(opinion_entropy(torch.tensor([row]))) == pytest.approx(float(-(masses * masses.log()).sum()), abs=1e-5)
