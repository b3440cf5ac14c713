"""Alignment along a stream: new domains, what is remembered, and what copies share."""

import copy

import pytest
import torch

from support.alignment import (
    WIDTH,
    aligned,
    dark,
    images,
    sites,
    small_vit,
    watched,
)
from testdg.models.alignment import confidence, detach
from testdg.models.sites import Site, Statistics


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
def test_a_second_pass_without_more_confidence_is_discarded() -> None:
    model, alignment = watched(threshold=0.0)
    batch = images(40, seed=3)
    before = alignment.stream()
    output = model.run(batch)
    alignment.propose(output.logits)
    worse = output._replace(logits=torch.zeros_like(output.logits))
    given = output._replace(logits=50 * output.logits)
    found, changed = alignment.settle(lambda: worse, given, 0.5)
    assert not changed
    assert found is given
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
