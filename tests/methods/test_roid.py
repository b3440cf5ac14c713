"""ROID: weights, loss, correction and the way back, against literal loops."""

import math
from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from support.networks import confident
from testdg.methods.roid import Roid, correct_prior, image_weights, likelihood_ratio
from testdg.models import VisionModel
from testdg.testing import check_adapter, stream


def softmax(row: list[float]) -> list[float]:
    total = sum(math.exp(value) for value in row)
    return [math.exp(value) / total for value in row]


def random_logits(seed: int, count: int, classes: int) -> torch.Tensor:
    return 2 * torch.randn(count, classes, generator=torch.Generator().manual_seed(seed))


@settings(deadline=None)
@given(st.integers(0, 10_000), st.integers(2, 9), st.integers(2, 5))
def test_weights_are_the_formula(seed: int, count: int, classes: int) -> None:
    logits = random_logits(seed, count, classes)
    usual = random_logits(seed + 1, 1, classes).softmax(1)[0]
    mean, predictions = usual.double().tolist(), [softmax(row) for row in logits.double().tolist()]

    def stretched(values: list[float]) -> list[float]:
        return [(value - min(values)) / (max(values) - min(values)) for value in values]

    unlike = []
    for p in predictions:
        product = sum(a * b for a, b in zip(p, mean, strict=True))
        unlike.append(1 - product / math.hypot(*p) / math.hypot(*mean))
    diversity = stretched(unlike)
    certainty = stretched([sum(x * math.log(x) for x in p) for p in predictions])
    average = sum(diversity) / count
    for d, c, found in zip(diversity, certainty, image_weights(logits, usual, 1 / 3).tolist(), strict=True):
        if abs(d - average) > 1e-4:
            assert found == pytest.approx(0.0 if d < average else math.exp(3 * d * c), rel=5e-3)


def test_a_batch_of_one_has_weight_one() -> None:
    assert image_weights(random_logits(0, 1, 4), torch.full((4,), 0.25), 1 / 3).tolist() == [1.0]


@settings(deadline=None)
@given(st.integers(0, 10_000))
def test_the_likelihood_ratio_is_the_formula(seed: int) -> None:
    logits = 3 * random_logits(seed, 4, 3)
    for row, found in zip(logits.double().tolist(), likelihood_ratio(logits).tolist(), strict=True):
        expected = 0.0
        for p in softmax(row):
            p = min(p, 0.99)
            expected -= p * math.log(p / (1 - p) + 1e-5)
        assert found == pytest.approx(expected, rel=1e-3, abs=1e-4)


@settings(deadline=None)
@given(st.integers(0, 10_000), st.integers(1, 30), st.integers(2, 12))
def test_the_correction_is_the_formula(seed: int, count: int, classes: int) -> None:
    logits = random_logits(seed, count, classes)
    predictions = [softmax(row) for row in logits.double().tolist()]
    mean = [sum(column) / count for column in zip(*predictions, strict=True)]
    g = max(1 / count, 1 / classes) / max(mean)
    prior = torch.tensor([(m + g) / (1 + g * classes) for m in mean])
    torch.testing.assert_close(correct_prior(logits), logits * prior, rtol=1e-4, atol=1e-5)
    assert float(prior.sum()) == pytest.approx(1, rel=1e-5)


def test_a_step_is_the_formula(vit: VisionModel) -> None:
    adapter, twin = (Roid(confident(vit, 1.0), learning_rate=0.1, source_share=0.25) for _ in range(2))
    images = stream(adapter, 1, 8)[0]
    view = twin.augment(images, torch.Generator().manual_seed(0))
    logits, other = twin.model(images).logits.double(), twin.model(view).logits.double()
    weights = image_weights(logits.detach(), torch.full((10,), 0.1), 1 / 3)
    total = torch.zeros(())
    for w, row, seen in zip(weights.double(), logits, other, strict=True):
        p, q = row.softmax(0), seen.softmax(0)
        ratio = -(p * (p / (1 - p) + 1e-5).log()).sum()
        total = total + w * (ratio - 0.5 * (p * q.log()).sum() - 0.5 * (q * p.log()).sum())
    gradients = torch.autograd.grad(total / 8, twin.learner.parameters_)
    source = [p.detach().clone() for p in twin.learner.parameters_]
    adapter(images)
    for parameter, old, gradient in zip(adapter.learner.parameters_, source, gradients, strict=True):
        torch.testing.assert_close(parameter, old - 0.75 * 0.1 * 1.9 * gradient, rtol=1e-3, atol=1e-6)
    mean = logits.softmax(1).mean(0).float()
    torch.testing.assert_close(adapter.usual, 0.09 + 0.1 * mean.detach(), rtol=1e-4, atol=1e-6)


def test_the_view_is_neither_blurred_nor_noisy(vit: VisionModel) -> None:
    grey = torch.full((2, 3, 32, 32), 0.5)
    view = Roid(vit).augment(grey, torch.Generator().manual_seed(0))
    spread = view.amax((2, 3)) - view.amin((2, 3))
    assert float(spread.max()) < 1e-5


def test_an_adapted_model_with_other_predictions_breaks_a_law(
    vit: VisionModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Roid, "why_not_exportable", lambda adapter: None)
    with pytest.raises(AssertionError, match="predictions differ"):
        check_adapter(partial(Roid, vit), only="the adapted model predicts what predict does")


def test_without_correction_and_learning_it_is_the_source(vit: VisionModel) -> None:
    adapter = Roid(vit, learning_rate=0.0, prior_correction=False)
    for images in stream(adapter):
        with torch.no_grad():
            torch.testing.assert_close(adapter(images), vit(images).logits)
