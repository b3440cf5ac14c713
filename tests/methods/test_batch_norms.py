"""BatchNorm layers that are exchanged: moving statistics, and a mixture of batch and source."""

import pytest
import torch
from torch import nn

from support.models import WithActivation
from testdg.core.weights import uses_batch
from testdg.methods.parts.normalisation import (
    MixedBatchNorm,
    SlowBatchNorm,
    batch_norms,
    follow_statistics,
    replace_batch_norms,
)
from testdg.models import Preprocessing, VisionModel, load_model

CHANNELS = 3


def test_statistics_move_within_only(cnn: VisionModel) -> None:
    replace_batch_norms(cnn, SlowBatchNorm, 0.5)
    batch = torch.rand(6, 3, 32, 32)
    before = cnn.fingerprint()
    cnn.run(batch)
    assert cnn.fingerprint() == before
    with follow_statistics(cnn):
        cnn.run(batch)
    assert cnn.fingerprint() != before
    assert not any(norm.training for norm in batch_norms(cnn))


def test_layers_are_exchanged_without_a_change_of_the_prediction(cnn: VisionModel) -> None:
    batch = torch.rand(4, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        expected = cnn(batch).logits
        replace_batch_norms(cnn, SlowBatchNorm, 0.5)
        assert {type(norm) for norm in batch_norms(cnn)} == {SlowBatchNorm}
        torch.testing.assert_close(cnn(batch).logits, expected)
        replace_batch_norms(cnn, nn.BatchNorm2d)
        assert {type(norm) for norm in batch_norms(cnn)} == {nn.BatchNorm2d}
        assert torch.equal(cnn(batch).logits, expected)


@torch.no_grad()
def test_layers_that_do_more_are_not_exchanged() -> None:
    network = nn.Sequential(nn.Conv2d(3, 4, 3), WithActivation(4), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(3600, 2))
    model = load_model(network.eval(), preprocessing=Preprocessing((32, 32)), name="own")
    images = torch.rand(3, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    expected = model(images).logits
    replace_batch_norms(model, SlowBatchNorm, 0.5)
    assert [type(norm) for norm in batch_norms(model)] == [WithActivation, SlowBatchNorm]
    torch.testing.assert_close(model(images).logits, expected)


@pytest.mark.parametrize(("images", "share"), [(1, 1 / 5.5), (12, 12 / 33), (40, 40 / 103)])
def test_the_source_counts_for_each_image_of_a_batch_and_for_two_more(images: int, share: float) -> None:
    norm = MixedBatchNorm(CHANNELS, 1e-5, 1.5).eval()
    with torch.no_grad():
        norm.running_mean.fill_(1.0)
        norm.running_var.fill_(0.5)
    batch = 2 * torch.randn(images, CHANNELS, 4, 5, generator=torch.Generator().manual_seed(0)) + 1
    first = (1 - share) * 1.0 + share * batch.mean((0, 2, 3))
    second = (1 - share) * 1.5 + share * batch.square().mean((0, 2, 3))
    deviation = (second - first.square() + 1e-5).sqrt()
    expected = (batch - first[:, None, None]) / deviation[:, None, None]
    torch.testing.assert_close(norm(batch), expected, rtol=1e-4, atol=1e-4)
    assert uses_batch(norm)


def test_gradients_pass_through_the_statistics_of_the_batch() -> None:
    norm, generator = MixedBatchNorm(CHANNELS, 1e-5, 1.5).eval(), torch.Generator().manual_seed(0)
    batch, way, weights = torch.randn(3, 3, CHANNELS, 2, 2, generator=generator)
    (gradient,) = torch.autograd.grad((norm(batch.requires_grad_(True)) * weights).sum(), batch)
    with torch.no_grad():
        ahead, back = ((norm(batch + step * way) * weights).sum() for step in (0.01, -0.01))
    assert float((gradient * way).sum()) == pytest.approx(float(ahead - back) / 0.02, rel=1e-2)
    (alone,) = torch.autograd.grad((norm(batch.detach()) * weights * batch).sum(), batch)
    assert not torch.allclose(alone, gradient, atol=1e-2)
