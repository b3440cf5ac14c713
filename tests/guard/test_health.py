"""Is a model still itself: what a probe says, and whom it asks."""

from typing import Any

import pytest
import torch
from torch import Tensor

from testdg import Preprocessing, adapt, guard, load_model
from testdg.core.guard.health import (
    LENIENT,
    MAX_UNCERTAINTY_RATIO,
    STRICT,
    TRAIN_SET_CONFIDENCE_BONUS,
    Probe,
)
from testdg.models import TinyViT
from testdg.models.alignment import confidence
from testdg.testing import stream

DOUBT = 0.05  # of the probe
FOREIGN = MAX_UNCERTAINTY_RATIO * (DOUBT + TRAIN_SET_CONFIDENCE_BONUS)


def logits_of(doubt: float) -> Tensor:
    """Predictions whose class has the probability 1 - doubt, of two."""
    return torch.tensor([[1 - doubt, doubt]]).log().expand(10, 2)


def probe(origin: str = "source") -> Probe:
    made = Probe(torch.rand(10, 3, 8, 8) if origin == "source" else None, "classification")
    made.begin(lambda images: torch.zeros(len(images), 2), lambda _: logits_of(DOUBT))
    return made


@pytest.mark.parametrize(
    ("agreement", "doubt", "forgotten"),
    [
        (0.98, 0.0, False),
        (0.98, 0.9, False),
        (1 - STRICT["classification"] - 0.01, DOUBT, True),
        (1 - STRICT["classification"] - 0.01, FOREIGN - 0.01, True),
        (1 - STRICT["classification"] - 0.01, FOREIGN + 0.01, False),
        (1 - LENIENT - 0.01, 0.4, True),
    ],
)
def test_a_foreign_stream_excuses_much_and_not_all(agreement: float, doubt: float, forgotten: bool) -> None:
    assert probe().forgotten(agreement, lambda _: logits_of(doubt), torch.rand(4, 3, 8, 8)) is forgotten


@pytest.mark.parametrize("agreement", [0.99, 0.3])
def test_the_source_is_asked_only_where_it_matters(agreement: float) -> None:
    def nobody(images: Tensor) -> Any:
        raise AssertionError("asked")

    assert probe().forgotten(agreement, nobody, torch.rand(4, 3, 8, 8)) is (agreement < 0.5)


def test_a_probe_of_the_stream_is_judged_leniently() -> None:
    assert not probe("stream").forgotten(1 - LENIENT + 0.01, lambda _: logits_of(0.0), torch.rand(4, 3, 8, 8))
    assert probe("stream").forgotten(1 - LENIENT - 0.01, lambda _: logits_of(0.0), torch.rand(4, 3, 8, 8))


def test_how_sure_the_source_is_does_not_depend_on_how_a_method_puts_its_predictions() -> None:
    """ROID predicts shares of classes, corrected by a prior, in place of logits."""
    torch.manual_seed(0)
    model = load_model(TinyViT(), preprocessing=Preprocessing((32, 32)))
    images = torch.rand(20, 3, 32, 32)
    guarded = guard(adapt(model, "roid"), images)
    guarded(next(iter(stream(guarded.adapter, 1, 8))))
    assert guarded.probe.confidence is not None
    with torch.no_grad():
        expected = confidence(model(model.prepare(images)).logits)
    torch.testing.assert_close(guarded.probe.confidence, expected)
    assert abs(float(confidence(guarded.adapter.predict(images)) - expected)) > 1e-3


@pytest.mark.parametrize("half", [0, 1])
def test_half_of_the_probe_is_enough_where_nothing_is_forgotten(half: int) -> None:
    made, asked = probe(), []

    def predict(images: Tensor, wrong: int = 0) -> Tensor:
        asked.append(images)
        logits = torch.tensor([[1.0, 0.0]]).repeat(len(images), 1)
        logits[:wrong] = torch.tensor([0.0, 1.0])
        return logits

    assert made.images is not None
    assert made.agreement(predict, half) == 1
    assert len(asked) == 1
    assert torch.equal(asked.pop(), made.images[5 * half : 5 * half + 5])
    assert made.agreement(lambda images: predict(images, wrong=1), half) == pytest.approx(0.8)  # one in each half
    assert sum(map(len, asked)) == 10
