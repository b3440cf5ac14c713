"""TENT: the entropy, its gradient, and what moves."""

import pytest
import torch

from support.literal import literal_loss
from testdg.methods.tent import Tent
from testdg.models import VisionModel
from testdg.testing import stream


def test_the_prediction_is_the_one_before_the_update(vit: VisionModel) -> None:
    adapter = Tent(vit, learning_rate=1e-2)
    images = stream(adapter, 1)[0]
    with torch.no_grad():
        expected = vit(vit.prepare(images)).logits
    torch.testing.assert_close(adapter(images), expected)
    assert not torch.allclose(adapter.predict(images), expected, atol=1e-3)


def test_two_steps_are_two_updates(vit: VisionModel) -> None:
    one, two = Tent(vit, learning_rate=1e-2), Tent(vit, learning_rate=1e-2, steps=2)
    images = stream(one, 1)[0]
    one(images)
    torch.testing.assert_close(two(images), one(images))
    torch.testing.assert_close(two.predict(images), one.predict(images))


def test_batch_norm_uses_the_batch_unless_told_otherwise(cnn: VisionModel) -> None:
    images = stream(Tent(cnn), 1)[0]
    stored = Tent(cnn, batch_statistics=False, learning_rate=0.0)
    with torch.no_grad():
        source = cnn(cnn.prepare(images)).logits
    torch.testing.assert_close(stored(images), source)
    adapter = Tent(cnn, learning_rate=0.0)
    of_batch = adapter(images)
    assert not torch.allclose(of_batch, source, atol=1e-2)
    cnn.train()
    with torch.no_grad():
        torch.testing.assert_close(of_batch, cnn(cnn.prepare(images)).logits)
    assert not torch.allclose(adapter.predict(images[:3]), of_batch[:3], atol=1e-3)


@pytest.mark.parametrize("loss", ["entropy", "hard", "come"])
def test_a_step_is_the_formula(vit: VisionModel, loss: str) -> None:
    adapter, twin = (Tent(vit, learning_rate=0.1, optimizer="momentum", loss=loss) for _ in range(2))
    images = stream(adapter, 1)[0]
    logits, parameters = twin.model(images).logits, twin.learner.parameters_
    terms = [-row.log_softmax(0).max() if loss == "hard" else literal_loss(row, loss) for row in logits]
    gradients = torch.autograd.grad(torch.stack(terms).mean(), parameters)
    torch.testing.assert_close(adapter(images), logits.detach())
    for moved, old, gradient in zip(adapter.learner.parameters_, parameters, gradients, strict=True):
        torch.testing.assert_close(moved, old - 0.1 * gradient, rtol=1e-4, atol=1e-6)
