"""Alignment: statistics of tokens, what undoes a shift and a stretch, and what is written beside the weights."""

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from testdg.errors import UserError
from testdg.methods.parts.alignment import site_names
from testdg.methods.parts.blocks import prefix_tokens
from testdg.models import Preprocessing, TinyCNN, TinyViT, VisionModel, load_model
from testdg.models.alignment import FILE, Alignment, confidence, detach
from testdg.models.segformer import random_segformer
from testdg.models.sites import Site, Statistics, farthest_class

MakeFolder = Callable[[str], tuple[Path, Any]]
WIDTH = 16


def images(count: int, seed: int = 0, size: int = 32) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    coarse = torch.rand(count, 3, 4, 4, generator=generator)
    return nn.functional.interpolate(coarse, (size, size), mode="bilinear")


def small_vit(depth: int = 3, **options: Any) -> VisionModel:
    torch.manual_seed(0)
    network = TinyViT(width=WIDTH, depth=depth, patch=8, heads=2, **options)
    return load_model(network, preprocessing=Preprocessing((32, 32), mean=(0.5,) * 3, std=(0.5,) * 3))


def without_opinion(model: VisionModel) -> VisionModel:
    """The same model with equal predictions, so that classes explain nothing."""
    with torch.no_grad():
        for parameter in model.network.get_submodule(model.head).parameters():
            parameter.zero_()
    return model


def sites(model: VisionModel) -> list[Site]:
    assert model.alignment is not None
    return [site for site in model.alignment.sites if isinstance(site, Site)]


def aligned(model: VisionModel, block: str = "blocks.1", **options: Any) -> Alignment:
    options = {"prefix": 1, "class_token": True, "memory": 800.0, **options}
    return Alignment(model, [block], **options)


class Distortion:
    """A shift and a stretch of what a block gives, channel by channel."""

    def __init__(self, model: VisionModel, block: str = "blocks.1", least: float = 0.55, most: float = 1.9) -> None:
        generator = torch.Generator().manual_seed(1)
        self.scale = least + (most - least) * torch.rand(WIDTH, generator=generator)
        self.shift = torch.randn(WIDTH, generator=generator)
        self.on = False
        model.network.get_submodule(block).register_forward_hook(self)

    def __call__(self, _: nn.Module, __: Any, tokens: Tensor) -> Tensor:
        return tokens * self.scale + self.shift if self.on else tokens


def seen_after(model: VisionModel, block: str, batch: Tensor) -> Tensor:
    """Tokens after a block."""
    found: list[Tensor] = []
    handle = model.network.get_submodule(block).register_forward_hook(lambda _, __, tokens: found.append(tokens))
    with torch.no_grad():
        model.run(batch)
    handle.remove()
    return found[0]


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
def test_class_tokens_are_moved_where_that_is_asked_for(class_token: bool) -> None:
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


# Domains


def dark(count: int, seed: int = 0) -> Tensor:
    return 0.3 * images(count, seed)


def watched(**options: Any) -> tuple[VisionModel, Alignment]:
    """A model that was measured on clean images."""
    model = small_vit()
    alignment = aligned(model, **options)
    alignment.measure(model.run, [images(128, seed=9)], 100.0)
    return model, alignment


@torch.no_grad()
def test_a_batch_that_is_far_away_is_looked_at_with_its_own_statistics_and_forgotten() -> None:
    model, _ = watched(threshold=0.5, reads="batch")
    plain = copy.deepcopy(model)
    assert plain.alignment is not None
    plain.alignment.reads = "memory"
    before = {name: value.clone() for name, value in model.state_dict().items()}
    far = dark(40)
    found, without = model(far), plain(far)
    assert (found.logits - without.logits).abs().max() > 1e-3
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert torch.equal(without.logits, model.run(far).logits)
    near = images(40, seed=3)
    assert torch.equal(model(near).logits, plain(near).logits)

    # two passes, each with the statistics that the one before it has found
    own = copy.deepcopy(plain)
    assert own.alignment is not None
    logits = own.run(far).logits
    for _ in range(2):
        own.alignment.propose(logits)
        own.alignment.remember(changed=True)
        logits = own.run(far).logits
    torch.testing.assert_close(found.logits, logits)


@torch.no_grad()
def test_predictions_that_are_no_surer_are_left_and_so_is_the_memory() -> None:
    model, alignment = watched(threshold=0.0)
    batch = images(40, seed=3)
    before = alignment.stream()
    output = model.run(batch)
    alignment.propose(output.logits)
    worse = output._replace(logits=torch.zeros_like(output.logits))
    given = output._replace(logits=50 * output.logits)
    kept, changed = alignment.settle(lambda: worse, given, 0.5)
    assert not changed
    assert kept is given
    assert float(alignment.stream()[0].images) == float(before[0].images) + 40
    other, changed = alignment.settle(lambda: worse, given, 3.5)
    assert changed
    assert other is worse


def test_a_memory_moves_as_another_one_did() -> None:
    _, alignment = watched()
    before = alignment.stream()
    gap, ratio = torch.randn_like(before[0].mean), 0.5 + torch.rand_like(before[0].mean)
    other = Statistics(torch.zeros_like(gap), torch.full_like(gap, 2.0), torch.tensor(7.0))
    moved = Statistics(gap, 2 * ratio, torch.tensor(20.0))
    alignment.move([other], [moved])
    (found,) = alignment.stream()
    torch.testing.assert_close(found.mean, before[0].mean + gap)
    torch.testing.assert_close(found.variance, before[0].variance * ratio)
    assert float(found.images) == 20


def test_confidence_is_the_mean_probability_of_the_predicted_class() -> None:
    logits = torch.tensor([[0.2, 0.8], [0.9, 0.1]]).log()
    assert float(confidence(logits)) == pytest.approx(0.85)


def test_copies_have_a_memory_of_their_own() -> None:
    model, alignment = watched()
    other = copy.deepcopy(model)
    assert other.alignment is not None
    assert other.alignment is not alignment
    assert sites(other)[0].owner is other.alignment
    before = model.run(dark(40)).logits
    with torch.no_grad():
        other.alignment.propose(other.run(dark(40)).logits)
    other.alignment.remember(changed=True)
    assert torch.equal(model.run(dark(40)).logits, before)
    assert not torch.allclose(other.run(dark(40)).logits, before, atol=1e-3)


@torch.no_grad()
def test_an_alignment_replaces_another_and_can_be_taken_away() -> None:
    model = small_vit()
    plain = model.run(dark(8)).logits
    for _ in range(2):
        aligned(model).measure(model.run, [images(64)], 100.0)
        sites(model)[0].stream_mean += torch.linspace(-1, 1, WIDTH)
        assert len(model.network.get_submodule("blocks.1")._forward_hooks) == 1
        assert not torch.allclose(model.run(dark(8)).logits, plain, atol=1e-3)
    detach(model)
    assert model.alignment is None
    assert torch.equal(model.run(dark(8)).logits, plain)


@torch.no_grad()
def test_image_by_image_half_the_statistics_are_the_images_own() -> None:
    """By hand, at the only site: the patches of an image and as many of the source, seen together."""
    model, alignment = watched(class_token=True)
    site = alignment.sites[0]
    assert isinstance(site, Site)
    site.stream_mean.fill_(7.0)  # what is remembered does not count
    tokens = torch.randn(3, 5, site.source_mean.shape[1])
    alignment.reads = "image"
    found = site.after(model, None, tokens)
    assert torch.allclose(found[:, :1], tokens[:, :1], atol=1e-5)  # the class token stays
    mean, variance = site.source_mean[0], site.source_variance[0]
    for image, aligned_ in zip(tokens[:, 1:], found[:, 1:], strict=True):
        middle = (image.mean(0) + mean) / 2
        spread = (image.square().mean(0) + variance + mean.square()) / 2 - middle.square()
        expected = (image - middle) * (variance / spread).sqrt().clamp(0.5, 2) + mean
        torch.testing.assert_close(aligned_, expected, atol=1e-4, rtol=1e-4)


# On disk


def adapted() -> VisionModel:
    """A model that has followed a stream."""
    model, alignment = watched(threshold=0.5, reads="batch")
    with torch.no_grad():
        alignment.propose(model.run(dark(30)).logits)
    alignment.remember(changed=True)
    return model


@torch.no_grad()
def test_a_saved_alignment_predicts_the_same(tmp_path: Path) -> None:
    model = adapted()
    model.save(tmp_path / "one")
    assert (tmp_path / "one" / FILE).is_file()
    again = load_model(tmp_path / "one")
    for batch in (images(5, seed=4), dark(40, seed=5), images(40, seed=6)):
        assert torch.equal(again(batch).logits, model(batch).logits)
    assert again.fingerprint() == model.fingerprint()
    assert again.alignment is not None
    assert (again.alignment.blocks, again.alignment.reads, again.alignment.threshold) == (["blocks.1"], "batch", 0.5)
    again.save(tmp_path / "two")
    assert (tmp_path / "two" / FILE).read_bytes() == (tmp_path / "one" / FILE).read_bytes()


def test_an_alignment_is_part_of_the_fingerprint(tmp_path: Path) -> None:
    model = adapted()
    first = model.fingerprint()
    sites(model)[0].stream_mean[0, 0] += 1e-3
    assert model.fingerprint() != first
    detach(model)
    assert model.fingerprint() not in ("", first)
    model.save(tmp_path)
    assert not (tmp_path / FILE).exists()
    assert load_model(tmp_path).alignment is None


def test_an_alignment_of_a_transformers_model_comes_back(make_folder: MakeFolder, tmp_path: Path) -> None:
    for kind in ("vit", "segformer"):
        model = load_model(make_folder(kind)[0])
        (name,) = site_names(model, 1)
        prefix = prefix_tokens(model, name)
        assert prefix == {"vit": 1, "segformer": 0}[kind]
        alignment = Alignment(model, [name], prefix=prefix, class_token=True, memory=100.0)
        alignment.measure(model.run, images(64).split(32), 100.0)
        mean = sites(model)[0].stream_mean
        mean += torch.linspace(-1, 1, mean.shape[1])
        model.save(tmp_path / "saved" / kind)
        with torch.no_grad():
            again = load_model(tmp_path / "saved" / kind)
            assert torch.equal(again(images(3)).logits, model(images(3)).logits)
            assert not torch.allclose(load_model(make_folder(kind)[0])(images(3)).logits, model(images(3)).logits)


def rewrite(path: Path, change: Callable[[dict[str, Tensor], dict[str, Any]], None]) -> None:
    with safe_open(path, "pt") as file:
        about = json.loads(file.metadata()["alignment"])
    tensors = load_file(path)
    change(tensors, about)
    save_file(tensors, path, {"alignment": json.dumps(about)})


def other_shape(tensors: dict[str, Tensor], about: dict[str, Any]) -> None:
    tensors["sites.0.source_mean"] = torch.zeros(2, WIDTH + 1)


def missing(tensors: dict[str, Tensor], about: dict[str, Any]) -> None:
    del tensors["sites.0.unit"]


def other_block(tensors: dict[str, Tensor], about: dict[str, Any]) -> None:
    about["blocks"] = ["blocks.7"]


def no_block(tensors: dict[str, Tensor], about: dict[str, Any]) -> None:
    about["blocks"] = ["head"]


def other_setting(tensors: dict[str, Tensor], about: dict[str, Any]) -> None:
    about["speed"] = 3


def text_for_number(tensors: dict[str, Tensor], about: dict[str, Any]) -> None:
    about["prefix"] = "one"


@pytest.mark.parametrize("change", [other_shape, missing, other_block, no_block, other_setting, text_for_number])
def test_a_file_that_does_not_fit_is_named(change: Any, tmp_path: Path) -> None:
    adapted().save(tmp_path)
    rewrite(tmp_path / FILE, change)
    with pytest.raises(UserError, match=FILE):
        load_model(tmp_path)


@pytest.mark.parametrize("content", [b"", b"\x07" * 300, bytes(range(256)) * 4])
def test_a_damaged_file_is_named(content: bytes, tmp_path: Path) -> None:
    adapted().save(tmp_path)
    (tmp_path / FILE).write_bytes(content)
    with pytest.raises(UserError, match=FILE):
        load_model(tmp_path)


def test_a_file_without_settings_is_named(tmp_path: Path) -> None:
    adapted().save(tmp_path)
    tensors = load_file(tmp_path / FILE)
    for about in (None, {"alignment": "[1]"}, {"alignment": "{"}):
        save_file(tensors, tmp_path / FILE, about)
        with pytest.raises(UserError, match=FILE):
            load_model(tmp_path)
