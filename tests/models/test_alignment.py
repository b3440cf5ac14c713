"""Alignment: statistics of tokens, and what undoes a shift and a stretch."""

import pytest
import torch
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from support.alignment import WIDTH, Distortion, aligned, images, seen_after, sites, small_vit, without_opinion
from testdg.methods.align import site_names
from testdg.methods.parts.blocks import prefix_tokens
from testdg.models import Preprocessing, TinyCNN, load_model
from testdg.models.segformer import random_segformer
from testdg.models.sites import Statistics, farthest_class

# Statistics

counts = st.integers(1, 9)


@settings(deadline=None, max_examples=50)
@given(counts, counts, st.integers(0, 1000), st.floats(-50, 50))
def test_merged_statistics_are_those_of_all_points(one: int, other: int, seed: int, shift: float) -> None:
    generator = torch.Generator().manual_seed(seed)
    points = torch.randn(one + other, 2, 3, generator=generator, dtype=torch.float64)
    points[one:] += shift

    def of(some: Tensor) -> Statistics:
        return Statistics(some.mean(0), some.var(0, correction=0), torch.tensor(float(len(some)), dtype=some.dtype))

    merged, expected = of(points[:one]).with_(of(points[one:]), 1e9), of(points)
    for value, right in zip(merged, expected, strict=True):
        torch.testing.assert_close(value, right, rtol=1e-9, atol=1e-9)


@settings(deadline=None)
@given(counts, counts, counts)
def test_no_more_images_count_than_are_remembered(one: int, other: int, most: int) -> None:
    def of(number: int, value: float) -> Statistics:
        return Statistics(torch.full((1, 2), value), torch.ones(1, 2), torch.tensor(float(number)))

    merged = of(one, 0.0).with_(of(other, 1.0), float(most))
    assert float(merged.images) == min(one + other, most)
    torch.testing.assert_close(merged.mean, torch.full((1, 2), other / (one + other)))


def test_the_source_is_measured_over_all_images_and_places() -> None:
    model = without_opinion(small_vit())
    clean = images(70)
    tokens = seen_after(model, "blocks.1", clean)
    alignment = aligned(model)
    alignment.measure(model.run, clean.split(32), 100.0)
    assert int(alignment.sites[0].read("source").images) == 70
    source = sites(model)[0].read("source")
    patches = tokens[:, 1:].flatten(0, 1)
    torch.testing.assert_close(source.mean, torch.stack([patches.mean(0), tokens[:, 0].mean(0)]), rtol=1e-4, atol=1e-5)
    variances = torch.stack([patches.var(0, correction=0), tokens[:, 0].var(0, correction=0)])
    torch.testing.assert_close(source.variance, variances, rtol=1e-3, atol=1e-7)
    stream = sites(model)[0].read("stream")
    assert float(stream.images) == 100
    assert torch.equal(stream.mean, source.mean)


# What a site does to tokens


@pytest.mark.parametrize("count", [40, 70])
def test_a_shift_and_a_stretch_of_all_channels_are_undone(count: int) -> None:
    model = without_opinion(small_vit())
    distortion, clean = Distortion(model), images(count)
    with torch.no_grad():
        expected = model.run(clean).features
        alignment = aligned(model)
        alignment.measure(model.run, clean.split(16), 100.0)
        torch.testing.assert_close(model.run(clean).features, expected, rtol=1e-4, atol=1e-4)
        distortion.on = True
        shifted = model.run(clean)
        assert (shifted.features - expected).abs().max() > 0.5
        alignment.propose(shifted.logits)
        alignment.remember(changed=True)
        torch.testing.assert_close(model.run(clean).features, expected, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("class_token", [True, False])
def test_class_tokens_are_moved_on_request(class_token: bool) -> None:
    model = without_opinion(small_vit())
    distortion, clean = Distortion(model), images(40)
    expected = seen_after(model, "blocks.1", clean)
    distortion.on = True
    shifted = seen_after(model, "blocks.1", clean)
    distortion.on = False
    alignment = aligned(model, class_token=class_token)
    alignment.measure(model.run, [clean], 100.0)
    distortion.on = True
    with torch.no_grad():
        alignment.propose(model.run(clean).logits)
    alignment.remember(changed=True)
    found = seen_after(model, "blocks.1", clean)
    torch.testing.assert_close(found[:, 1:], expected[:, 1:], rtol=1e-3, atol=1e-3)
    if class_token:
        torch.testing.assert_close(found[:, :1], expected[:, :1], rtol=1e-3, atol=1e-3)
    else:
        assert torch.equal(found[:, :1], shifted[:, :1])
        assert sites(model)[0].read("source").mean.shape == (1, WIDTH)


@pytest.mark.parametrize(("stretch", "scale"), [(10.0, 0.5), (0.1, 2.0), (1.25, 0.8)])
def test_no_deviation_is_changed_by_more_than_two(stretch: float, scale: float) -> None:
    model = without_opinion(small_vit())
    clean = images(40)
    tokens = seen_after(model, "blocks.1", clean)
    aligned(model).measure(model.run, [clean], 100.0)
    site = sites(model)[0]
    source = site.read("source")
    site.write("stream", Statistics(source.mean + 1, source.variance * stretch**2, source.images))
    expected = (tokens[:, 1:] - source.mean[0] - 1) * scale + source.mean[0]
    torch.testing.assert_close(seen_after(model, "blocks.1", clean)[:, 1:], expected, rtol=1e-3, atol=1e-4)


def test_aligned_tokens_keep_their_precision() -> None:
    model = small_vit()
    aligned(model).measure(model.run, [images(40)], 100.0)
    site = sites(model)[0]
    assert site.after(model, None, torch.randn(2, 17, WIDTH, dtype=torch.bfloat16)).dtype == torch.bfloat16
    output = site.after(model, None, (torch.randn(2, 17, WIDTH), "rest"))
    assert output[0].shape == (2, 17, WIDTH)
    assert output[1] == "rest"


# What classes explain


class Colours(nn.Module):
    """Three classes: the channel that is brightest on the mean of the patches."""

    def __init__(self) -> None:
        super().__init__()
        self.block = nn.Module()
        self.block.norm = nn.LayerNorm(3)
        self.block.forward = lambda tokens: tokens  # type: ignore[method-assign]
        self.head = nn.Linear(3, 3, bias=False)
        with torch.no_grad():
            self.head.weight.copy_(60 * torch.eye(3))

    def forward(self, levels: Tensor) -> Tensor:
        return self.head(self.block(levels.flatten(2).transpose(1, 2)).mean(1))  # type: ignore[no-any-return]


def coloured(labels: Tensor, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    colours = 0.2 + 0.6 * torch.eye(3)[labels]
    return (colours[:, :, None, None] + 0.1 * torch.randn(len(labels), 3, 4, 4, generator=generator)).clamp(0, 1)


def test_a_stream_of_one_class_does_not_move_the_mean() -> None:
    model = load_model(Colours(), preprocessing=Preprocessing((4, 4)))
    alignment = aligned(model, "block", prefix=0)
    source_images = coloured(torch.arange(120) % 3)
    alignment.measure(model.run, [source_images], 100.0)
    (site,) = sites(model)
    source = site.read("source").mean.clone()
    one_class = coloured(torch.zeros(40, dtype=torch.long), seed=1)

    def distance() -> float:
        with torch.no_grad():
            alignment.propose(model.run(one_class).logits)
        return float((site.batch.mean - source).norm())

    corrected, gap = distance(), float(alignment.propose(model.run(one_class).logits))
    site.offsets.zero_()
    plain, plain_gap = distance(), float(site.gap())
    assert plain > 0.3
    # a class with 40 images in the source, where 10 are its shrinkage, is known by four fifths
    assert corrected == pytest.approx(plain / 5, rel=0.15)
    assert gap < 0.2
    assert plain_gap == pytest.approx(1, rel=0.2)


def test_the_farthest_class_is_in_units_of_the_variance_between_images() -> None:
    counts = torch.tensor([20.0, 40.0, 2.0, 0.0])
    means = torch.tensor([[3.0, 0.0], [1.0, 1.0], [100.0, 0.0], [0.0, 0.0]])
    between = torch.tensor([4.0, 1.0])
    found = farthest_class(means * counts[:, None], counts, between)
    assert float(found) == pytest.approx((9 / 4 + 0) / 2 - 1 / 20)
    few = farthest_class(means[2:] * counts[2:, None], counts[2:], between)
    assert float(few) == pytest.approx(0.4)


# Where sites stand


def test_prefix_tokens_are_those_that_no_convolution_made() -> None:
    assert prefix_tokens(small_vit(), "blocks.1") == 1
    segformer = random_segformer("tiny", ["a", "b", "c"])
    assert [prefix_tokens(segformer, name) for name in site_names(segformer, 2)] == [0, 0]
    small = {"hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 2, "image_size": 32, "patch_size": 8}
    hub = load_model(transformers.ViTForImageClassification(transformers.ViTConfig(**small, intermediate_size=32)))
    hub.preprocessing = Preprocessing((32, 32))
    assert prefix_tokens(hub, site_names(hub, 1)[0]) == 1
    if not hasattr(transformers, "Dinov2WithRegistersForImageClassification"):
        return
    config = transformers.Dinov2WithRegistersConfig(**small, num_register_tokens=4, mlp_ratio=2)
    registers = load_model(transformers.Dinov2WithRegistersForImageClassification(config))
    registers.preprocessing = Preprocessing((32, 32))
    assert prefix_tokens(registers, site_names(registers, 1)[0]) == 5


@pytest.mark.parametrize(
    ("depth", "count", "chosen"),
    [(12, 2, [4, 8]), (4, 2, [1, 2]), (4, 1, [2]), (2, 2, [0, 1]), (1, 2, [0]), (4, 0, [])],
)
def test_sites_divide_the_depth_evenly(depth: int, count: int, chosen: list[int]) -> None:
    assert site_names(small_vit(depth), count) == [f"blocks.{number}" for number in chosen]


def test_a_convolutional_network_has_no_sites() -> None:
    assert site_names(load_model(TinyCNN(width=4)), 2) == []
