"""Align: the memory of a stream, where a domain begins, and what is predicted with which statistics."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from support.errors import refused
from testdg import adapt
from testdg.data.benchmarks import load_benchmark
from testdg.methods import Adapter
from testdg.methods.align import Align
from testdg.models import Preprocessing, TinyViT, VisionModel, load_model
from testdg.models.alignment import Alignment
from testdg.models.sites import Site, Statistics
from testdg.runs.training.fine_tune import starting_model
from testdg.testing import stream
from testdg.testing.battery import difference, snapshot
from testdg.testing.laws import Injected, failing

EVER = 1e9
"""A threshold that no gap reaches."""


def clean(adapter: Align, batches: int, size: int, seed: int = 0) -> list[Tensor]:
    return stream(adapter, 2 * batches, size, seed)[:batches]


def started(model: VisionModel, **settings: Any) -> Align:
    """An adapter that has seen 160 clean images."""
    adapter = Align(model, **settings)
    adapter.warm_up(clean(adapter, 8, 20, seed=1))
    return adapter


def alignment_of(model: VisionModel) -> Alignment:
    assert model.alignment is not None
    return model.alignment


def first_site(model: VisionModel) -> Site:
    site = alignment_of(model).sites[0]
    assert isinstance(site, Site)
    return site


def own_statistics(model: VisionModel, images: Tensor, logits: Tensor) -> Statistics:
    """Of the tokens that reach the only site of a model, without what their predicted classes explain."""
    found: list[Tensor] = []
    site, block = first_site(model), model.network.get_submodule(alignment_of(model).blocks[0])
    handle = block.register_forward_hook(lambda _, __, tokens: found.append(tokens), prepend=True)
    with torch.no_grad():
        model.run(images)
    handle.remove()
    explained = torch.einsum("nc,ckd->nkd", logits.softmax(1), site.offsets)  # (N, 2, D): patches, class token
    patches, token = found[0][:, 1:] - explained[:, :1], found[0][:, 0] - explained[:, 1]
    patches = patches.flatten(0, 1)
    mean = torch.stack([patches.mean(0), token.mean(0)])
    variance = torch.stack([patches.var(0, correction=0), token.var(0, correction=0)])
    return Statistics(mean, variance, torch.tensor(float(len(images))))


def test_a_change_is_noticed_once_and_not_within_a_domain(vit: VisionModel) -> None:
    adapter = started(vit, threshold=5.0)
    changes, gaps = [], []
    for images in stream(adapter, 12, 40):
        adapter(images)
        changes.append(adapter.diagnostics["change"])
        gaps.append(float(adapter.diagnostics["gap"]))
    assert changes == [False] * 6 + [True] + [False] * 5
    assert gaps.pop(6) > 20
    assert max(gaps) < 1


def test_single_images_are_held_together_until_a_change_is_plain(vit: VisionModel) -> None:
    adapter = started(vit, threshold=5.0)
    changes = []
    for images in stream(adapter, 80, 1):
        adapter(images)
        changes.append(bool(adapter.diagnostics["change"]))
    assert not any(changes[:40])
    assert any(changes[40:60])


@torch.no_grad()
def test_a_domain_begins_with_its_own_statistics(vit: VisionModel) -> None:
    adapter = started(vit, sites=1, threshold=5.0)
    given = stream(adapter, 4, 40)
    for images in given[:2]:
        adapter(images)
    model = copy.deepcopy(adapter.model)
    new = given[2]
    old = logits = model.run(new).logits
    found = adapter(new)
    assert adapter.diagnostics["change"]
    for _ in range(2):
        own = own_statistics(model, new, logits)
        first_site(model).write("stream", own)
        logits = model.run(new).logits
    torch.testing.assert_close(found, logits, rtol=1e-4, atol=1e-4)
    assert (found - old).abs().max() > 1e-2
    (memory,) = alignment_of(adapter.model).stream()
    expected = own_statistics(model, new, logits)
    torch.testing.assert_close(memory.mean, expected.mean, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(memory.variance, expected.variance, rtol=1e-3, atol=1e-5)
    assert float(memory.images) == 40


@torch.no_grad()
def test_within_a_domain_a_batch_is_predicted_by_the_memory_before_it(vit: VisionModel) -> None:
    adapter = started(vit, threshold=EVER)
    for images in stream(adapter, 4, 30):
        before = copy.deepcopy(adapter.model)
        assert torch.equal(adapter(images), before.run(images).logits)
        assert not torch.allclose(adapter.predict(images), before.run(images).logits, atol=1e-6)


@torch.no_grad()
def test_the_memory_is_the_mean_of_the_source_and_all_images(vit: VisionModel) -> None:
    adapter = started(vit, sites=1, threshold=EVER, memory=10_000)
    (source,) = alignment_of(adapter.model).stream()
    given, means = clean(adapter, 5, 30), []
    for images in given:
        logits = adapter(images)
        means.append(own_statistics(adapter.model, images, logits).mean)
    expected = (100 * source.mean + 30 * torch.stack(means).sum(0)) / 250
    (memory,) = alignment_of(adapter.model).stream()
    assert float(memory.images) == 250
    torch.testing.assert_close(memory.mean, expected, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(("memory", "expected"), [(150, [120, 140, 150, 150]), (50, [50, 50, 50, 50])])
def test_no_more_images_count_than_the_memory_holds(memory: int, expected: list[int], vit: VisionModel) -> None:
    adapter = started(vit, threshold=EVER, memory=memory)
    found = []
    for images in clean(adapter, 4, 20):
        adapter(images)
        found.append({int(site.images) for site in alignment_of(adapter.model).stream()})
    assert found == [{count} for count in expected]


@torch.no_grad()
def test_predict_looks_at_a_batch_of_another_domain(vit: VisionModel) -> None:
    adapter = started(vit, threshold=5.0)
    near, _, far, _ = stream(adapter, 4, 40)
    by_memory = adapter.model.run(far).logits
    assert not torch.allclose(adapter.predict(far), by_memory, atol=1e-2)
    assert torch.equal(adapter.predict(near), adapter.model.run(near).logits)
    assert torch.equal(adapter.adapted_model()(far).logits, adapter.predict(far))
    torch.testing.assert_close(adapter.predict(far), adapter(far))


def test_a_prediction_that_fails_leaves_the_memory_as_it_was(vit: VisionModel) -> None:
    adapter = started(vit, threshold=5.0)
    far = stream(adapter, 4, 40)[2]
    before = snapshot(adapter)
    with failing(adapter) as moments:
        expected = adapter.predict(far)
    assert len(moments) >= 6  # the model runs at least three times on a batch of another domain
    for at in range(len(moments)):
        with failing(adapter, at), pytest.raises(Injected):
            adapter.predict(far)
        assert difference(before, snapshot(adapter)) is None, moments[at]
    assert torch.equal(adapter.predict(far), expected)


@torch.no_grad()
def test_alone_an_image_is_predicted_by_itself(vit: VisionModel, tmp_path: Path) -> None:
    adapter = started(vit, alone=True, threshold=5.0)
    given = stream(adapter, 4, 40)
    far = given[2]
    first = adapter.predict(far)
    assert not torch.allclose(first, adapter.model.run(far).logits, atol=1e-2)
    torch.testing.assert_close(torch.cat([adapter.predict(image[None]) for image in far]), first)
    for images in given:
        adapter(images)
    assert torch.equal(adapter.predict(far), first)  # whatever has been seen
    adapter.export(tmp_path)
    assert torch.equal(load_model(tmp_path)(far).logits, first)


@torch.no_grad()
def test_an_exported_model_predicts_both_domains(vit: VisionModel, tmp_path: Path) -> None:
    adapter = started(vit, threshold=5.0)
    given = stream(adapter, 4, 40)
    for images in given[:3]:
        adapter(images)
    adapter.export(tmp_path)
    assert (tmp_path / "alignment.safetensors").is_file()
    again = load_model(tmp_path)
    for images in given:
        torch.testing.assert_close(again(images).logits, adapter.predict(images))


@torch.no_grad()
def test_the_source_itself_is_predicted_as_by_the_model(vit: VisionModel) -> None:
    adapter = started(vit, threshold=EVER)
    images = clean(adapter, 1, 20, seed=7)[0]
    torch.testing.assert_close(adapter(images), vit(images).logits, rtol=1e-4, atol=1e-4)


@torch.no_grad()
def test_without_sites_nothing_is_aligned(vit: VisionModel) -> None:
    adapter = Align(vit, sites=0)
    assert not adapter.awaits_source
    for images in stream(adapter, 4):
        assert torch.equal(adapter(images), vit(images).logits)


@torch.no_grad()
def test_a_measured_source_is_asked_for_once(vit: VisionModel) -> None:
    adapter = Align(vit, source_images=64)
    batches = iter(clean(adapter, 10, 20, seed=1))
    with refused("no-source-data", "warm_up"):
        adapter(torch.rand(2, 3, 32, 32))
    adapter.warm_up(batches)
    assert int(alignment_of(adapter.model).sites[0].read("source").images) == 64
    assert len(list(batches)) == 6


@torch.no_grad()
def test_before_the_source_is_known_the_model_predicts() -> None:
    torch.manual_seed(0)
    network = TinyViT(width=32, depth=2, patch=8)
    network.position.mul_(200)
    model = load_model(network, preprocessing=Preprocessing((32, 32)))
    images = torch.rand(24, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(Align(model).predict(images), model(images).logits)


def test_an_exported_model_is_trained_without_its_alignment(vit: VisionModel, tmp_path: Path) -> None:
    adapter = started(vit)
    adapter(clean(adapter, 1, 20)[0])
    adapter.export(tmp_path / "model")
    assert load_model(tmp_path / "model").alignment is not None
    fresh = starting_model(load_benchmark("digits-c"), tmp_path / "model")
    assert fresh.alignment is None
    assert not any(layer._forward_hooks for layer in fresh.network.modules())


# The first images of a stream in place of source images


METHODS = ["align", "testdg_aligned"]


def make(model: VisionModel, method: str, **settings: Any) -> Adapter:
    return adapt(model, method, sketch="stream", source_images=64, **settings)


@pytest.mark.parametrize("method", METHODS)
def test_the_model_predicts_as_it_is_until_enough_images_have_come(vit: VisionModel, method: str) -> None:
    adapter, batches = make(vit, method), []
    assert not adapter.awaits_source
    batches = stream(adapter, 20, 16)
    for images in batches[:4]:
        torch.testing.assert_close(adapter(images), vit(vit.prepare(images)).logits)
    assert adapter.model.alignment is not None
    assert float(adapter.model.alignment.sites[0].get_buffer("source_images")) == 64
    later = [(adapter(images) - vit(vit.prepare(images)).logits).abs().max() for images in batches[4:]]
    assert max(later) > 1e-3


def test_where_nothing_is_measured_nothing_is_collected(cnn: VisionModel) -> None:
    adapter, plain = make(cnn, "align"), adapt(cnn, "align")
    assert adapter.remarks() == []
    for images in stream(plain, 6, 16):
        assert torch.equal(adapter(images), plain(images))
        assert adapter.beginning.content() == []  # type: ignore[attr-defined]
    features = make(cnn, "testdg_aligned")
    assert len(features.remarks()) == 1
    features(images)
    assert len(features.beginning.content()) == 1  # type: ignore[attr-defined]


def test_a_bad_batch_is_not_collected(vit: VisionModel) -> None:
    adapter = make(vit, "align")
    with refused("image-range"):
        adapter(torch.full((4, 3, 32, 32), torch.nan))
    assert adapter.beginning.content() == []


def test_a_warm_up_of_another_model_is_refused(vit: VisionModel) -> None:
    one = adapt(vit, "align")
    one.warm_up(stream(one, 4, 16))
    other = adapt(vit, "align")
    with torch.no_grad():
        next(other.model.parameters()).add_(0.1)
    with refused("other-model"):
        other.load_warm(one.warm)
    same = adapt(vit, "align")
    same.load_warm(one.warm)
    images = stream(one, 1, 8)[0]
    assert torch.equal(same(images), one(images))
