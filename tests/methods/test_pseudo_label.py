"""Pseudo-label: the loss, what is learnt from, and what moves."""

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from testdg.methods.pseudo_label import PseudoLabel, pseudo_label_loss
from testdg.models import VisionModel
from testdg.testing import stream


def random_logits(*shape: int, seed: int = 0) -> torch.Tensor:
    return 3 * torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@given(st.integers(0, 1000), st.floats(0, 1))
def test_the_loss_is_the_formula(seed: int, confidence: float) -> None:
    logits = random_logits(4, 3, 2, seed=seed)  # four images of two pixels
    total, count = 0.0, 0
    for image in logits.tolist():
        for pixel in zip(*image, strict=True):
            best = max(math.exp(value) for value in pixel) / sum(math.exp(value) for value in pixel)
            if best >= confidence:
                total, count = total - math.log(best), count + 1
    loss, chosen = pseudo_label_loss(logits, confidence)
    assert int(chosen.sum()) == count
    assert float(loss) == pytest.approx(total / max(count, 1), rel=1e-4, abs=1e-6)


def test_labels_carry_no_gradient() -> None:
    logits = random_logits(5, 4).requires_grad_(True)
    (found,) = torch.autograd.grad(pseudo_label_loss(logits, 0.0)[0], logits)
    p = logits.detach().softmax(1)
    expected = (p - torch.nn.functional.one_hot(p.argmax(1), 4)) / 5
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("optimizer", ["adam", "sgd", "momentum"])
def test_nothing_moves_where_no_label_is_sure(vit: VisionModel, optimizer: Any) -> None:
    adapter = PseudoLabel(vit, learning_rate=1e-2, optimizer=optimizer)
    images = stream(adapter, 1)[0]
    adapter(images)  # there is momentum now
    before = {name: value.clone() for name, value in adapter.model.state_dict().items()}
    object.__setattr__(adapter.settings, "confidence", 1.0)
    adapter(images)
    assert int(adapter.diagnostics["learnt_from"]) == 0
    assert all(torch.equal(value, before[name]) for name, value in adapter.model.state_dict().items())
    assert adapter.skipped == 0
