"""BatchNorm by the statistics of the last images of a stream."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from testdg.methods.align import Align
from testdg.methods.parts.normalisation import (
    MixedBatchNorm,
    RunningBatchNorm,
    batch_norms,
    follow_statistics,
    replace_batch_norms,
)
from testdg.methods.parts.weights import uses_batch
from testdg.models import Preprocessing, VisionModel, load_model
from testdg.testing import stream

CHANNELS = 3


def layer(memory: float) -> RunningBatchNorm:
    made = RunningBatchNorm(CHANNELS, 1e-5, memory)
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        made.weight.uniform_(0.5, 2, generator=generator)
        made.bias.normal_(generator=generator)
        made.running_mean.normal_(generator=generator)
        made.running_var.uniform_(0.5, 2, generator=generator)
    return made


def batches(sizes: list[int], seed: int = 0) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(size, CHANNELS, 4, 5, generator=generator) * 2 + k for k, size in enumerate(sizes)]


@settings(deadline=None, max_examples=30)
@given(st.lists(st.integers(1, 12), min_size=1, max_size=6), st.sampled_from([1.0, 16.0, 128.0]))
def test_moments_of_the_stream_are_averaged_by_images(sizes: list[int], memory: float) -> None:
    norm = layer(memory).train()
    first = norm.running_mean.double()
    second = norm.running_var.double() + first.square()
    for batch in batches(sizes):
        norm(batch)
        rest = memory / (memory + len(batch))
        first = rest * first + (1 - rest) * batch.double().mean((0, 2, 3))
        second = rest * second + (1 - rest) * batch.double().square().mean((0, 2, 3))
        torch.testing.assert_close(norm.running_mean.double(), first, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(norm.running_var.double(), second - first.square(), rtol=1e-3, atol=1e-3)


def test_single_images_end_in_the_variance_of_all_of_them() -> None:
    norm = layer(32.0).train()
    generator = torch.Generator().manual_seed(0)
    centres = 3 * torch.randn(400, CHANNELS, 1, 1, generator=generator)
    for centre in centres:
        norm(centre[None] + 0.1 * torch.randn(1, CHANNELS, 4, 4, generator=generator))
    assert norm.share(centres[:1]) == pytest.approx(1 / 33)
    # of a single image the variance is 0.01; between images it is 9
    assert bool((norm.running_var > 3).all())


def test_without_a_memory_it_is_the_batch_at_hand() -> None:
    norm, batch = layer(0.0).train(), batches([4])[0]
    expected = nn.functional.batch_norm(batch, None, None, norm.weight, norm.bias, training=True, eps=norm.eps)
    torch.testing.assert_close(norm(batch), expected, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(norm.running_var, batch.var((0, 2, 3), correction=0), rtol=1e-4, atol=1e-4)


def ordinary(norm: RunningBatchNorm) -> nn.BatchNorm2d:
    made = nn.BatchNorm2d(CHANNELS, norm.eps)
    made.load_state_dict(norm.state_dict())
    return made.eval()


def test_in_evaluation_it_is_an_ordinary_layer() -> None:
    norm, batch = layer(16.0), batches([5])[0]
    norm.train()(batch)
    kept = norm.running_mean.clone(), norm.running_var.clone()
    other = 3 * batch + 1
    torch.testing.assert_close(norm.eval()(other), ordinary(norm)(other), rtol=1e-5, atol=1e-5)
    assert torch.equal(norm.running_mean, kept[0])
    assert torch.equal(norm.running_var, kept[1])


def test_gradients_do_not_pass_through_the_statistics() -> None:
    norm = layer(4.0).train()
    batch = batches([6])[0].requires_grad_(True)
    weights = torch.randn(batch.shape, generator=torch.Generator().manual_seed(2))
    (found,) = torch.autograd.grad((norm(batch) * weights).sum(), batch)
    (expected,) = torch.autograd.grad((ordinary(norm)(batch) * weights).sum(), batch)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    free = nn.functional.batch_norm(batch, None, None, norm.weight, norm.bias, training=True)
    (through,) = torch.autograd.grad((free * weights).sum(), batch)
    assert not torch.allclose(found, through, atol=1e-2)


def test_statistics_move_within_only(cnn: VisionModel) -> None:
    replace_batch_norms(cnn, RunningBatchNorm, 16)
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
        replace_batch_norms(cnn, RunningBatchNorm, 16)
        assert {type(norm) for norm in batch_norms(cnn)} == {RunningBatchNorm}
        torch.testing.assert_close(cnn(batch).logits, expected)
        replace_batch_norms(cnn, nn.BatchNorm2d)
        assert {type(norm) for norm in batch_norms(cnn)} == {nn.BatchNorm2d}
        assert torch.equal(cnn(batch).logits, expected)


@torch.no_grad()
def test_an_exported_network_has_ordinary_layers_and_an_alignment(cnn: VisionModel, tmp_path) -> None:
    adapter = Align(cnn)
    assert not adapter.awaits_source
    given = stream(adapter, 4, 20)
    for images in given:
        adapter(images)
    adapter.export(tmp_path)
    assert (tmp_path / "alignment.safetensors").is_file()
    again = load_model(tmp_path)
    assert {type(norm) for norm in batch_norms(again)} == {nn.BatchNorm2d}
    for norm, source in zip(batch_norms(again), batch_norms(cnn), strict=True):
        assert all(torch.equal(value, source.state_dict()[name]) for name, value in norm.state_dict().items())
    for images in given:
        torch.testing.assert_close(again(again.prepare(images)).logits, adapter.predict(images))
        assert not torch.allclose(again(again.prepare(images)).logits, cnn(cnn.prepare(images)).logits, atol=1e-3)


class WithActivation(nn.BatchNorm2d):
    """BatchNorm that ends in an activation, as timm has it."""

    def forward(self, images: Tensor) -> Tensor:
        return super().forward(images).relu()


@torch.no_grad()
def test_layers_that_do_more_are_not_exchanged() -> None:
    network = nn.Sequential(nn.Conv2d(3, 4, 3), WithActivation(4), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(3600, 2))
    model = load_model(network.eval(), preprocessing=Preprocessing((32, 32)), name="own")
    images = torch.rand(3, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    expected = model(images).logits
    replace_batch_norms(model, RunningBatchNorm, 16)
    assert [type(norm) for norm in batch_norms(model)] == [WithActivation, RunningBatchNorm]
    torch.testing.assert_close(model(images).logits, expected)


def test_the_source_counts_as_so_many_images_in_the_statistics_of_a_batch() -> None:
    norm = MixedBatchNorm(CHANNELS, 1e-5, 4).eval()
    with torch.no_grad():
        norm.running_mean.fill_(1.0)
        norm.running_var.fill_(0.5)
    images = batches([12])[0]
    share = 12 / 16
    first = (1 - share) * 1.0 + share * images.mean((0, 2, 3))
    second = (1 - share) * 1.5 + share * images.square().mean((0, 2, 3))
    deviation = (second - first.square() + 1e-5).sqrt()
    expected = (images - first[:, None, None]) / deviation[:, None, None]
    torch.testing.assert_close(norm(images), expected, rtol=1e-4, atol=1e-4)
    assert uses_batch(norm)
