"""Measures of predictions."""

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from support.networks import confident
from testdg.methods.eata import Eata
from testdg.methods.parts.entropy import (
    effective_classes,
    entropy,
    opinion_entropy,
    soft_cross_entropy,
    symmetric_cross_entropy,
)
from testdg.methods.sar import Sar
from testdg.methods.testdg.learning import self_training_loss
from testdg.models import VisionModel
from testdg.testing import stream


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


def softmax(row: list[float]) -> list[float]:
    return [math.exp(value) / sum(map(math.exp, row)) for value in row]


@pytest.mark.parametrize("shape", [(4, 5), (2, 3, 4, 5)], ids=["images", "maps"])
def test_losses_between_predictions_are_the_formulas(shape: tuple[int, ...]) -> None:
    one, other = torch.randn(2, *shape, generator=torch.Generator().manual_seed(0)).double()
    rows, labels = (x.movedim(1, -1).flatten(0, -2).tolist() for x in (one, other))
    forth, both, plain = [], [], []
    for row, label in zip(rows, labels, strict=True):
        p, q = softmax(row), softmax(label)
        forth.append(-sum(b * math.log(a) for a, b in zip(p, q, strict=True)))
        both.append((forth[-1] - sum(a * math.log(b) for a, b in zip(p, q, strict=True))) / 2)
        plain.append(-sum(a * math.log(a) for a in p))
    assert soft_cross_entropy(one, other).flatten().tolist() == pytest.approx(forth, rel=1e-5)
    assert symmetric_cross_entropy(one, other).flatten().tolist() == pytest.approx(both, rel=1e-5)
    assert entropy(one).flatten().tolist() == pytest.approx(plain, rel=1e-5)
    for symmetric, values in ((False, forth), (True, both)):  # of TestDG
        found = self_training_loss(one, other, symmetric=symmetric)
        assert float(found) == pytest.approx(sum(values) / len(values), rel=1e-5)


# COME: the entropy of an opinion as the loss of TENT, EATA and SAR


@pytest.mark.parametrize(("host", "options"), [(Eata, {"fisher": False}), (Sar, {})])
@pytest.mark.parametrize("reliable_by", ["loss", "entropy"])
def test_what_is_reliable(vit: VisionModel, host: Any, options: dict[str, Any], reliable_by: str) -> None:
    adapter = host(confident(vit, 5.0), **options, loss="come", reliable_by=reliable_by)
    logits = adapter.infer(stream(adapter, 1, 12)[0])
    measure = opinion_entropy if reliable_by == "loss" else entropy
    _, reliable = adapter.settings.losses(logits)
    assert torch.equal(reliable, measure(logits) < 0.4 * math.log(10))


def test_ignorance_is_reliable_only_to_the_opinion(vit: VisionModel) -> None:
    ignorant = torch.full((1, 10), -10.0)
    for reliable_by, expected in (("loss", True), ("entropy", False)):
        _, reliable = Sar(vit, loss="come", reliable_by=reliable_by).settings.losses(ignorant)
        assert bool(reliable) is expected
