"""TestDG aligned: the teacher's average, what waits, and the gradients of its losses."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor

from testdg.methods.align import Align
from testdg.methods.testdg_aligned import TestDGAligned
from testdg.models import VisionModel
from testdg.testing import same_state, stream

EVER = 1e9
"""A threshold that no gap reaches."""


def clean(adapter: Align, batches: int, size: int, seed: int = 0) -> list[Tensor]:
    return stream(adapter, 2 * batches, size, seed)[:batches]


def started(model: VisionModel, **settings: Any) -> TestDGAligned:
    adapter = TestDGAligned(model, **settings)
    adapter.warm_up(clean(adapter, 4, 20, seed=1))
    return adapter


def weights(model: VisionModel) -> dict[str, Tensor]:
    return {name: value.detach().double() for name, value in model.named_parameters()}


def moved(model: VisionModel, other: VisionModel) -> bool:
    ours, theirs = weights(model), weights(other)
    return any(not torch.equal(value, theirs[name]) for name, value in ours.items())


# The teacher


@pytest.mark.parametrize(("momentum", "share"), [(0.9, 0.3), (0.5, 0.0), (0.9, 1.0)])
def test_the_teacher_averages_student_and_source(momentum: float, share: float, vit: VisionModel) -> None:
    adapter = started(vit, momentum=momentum, source_share=share, learning_rate=1e-2, gather=8)
    source = weights(vit)
    for images in stream(adapter, 3, 8):
        before = weights(adapter.teacher)
        adapter(images)
        student, teacher = weights(adapter.model), weights(adapter.teacher)
        for name, value in teacher.items():
            average = momentum * before[name] + (1 - momentum) * student[name]
            expected = average + (1 - momentum) * share * (source[name] - average)
            torch.testing.assert_close(value, expected, rtol=0, atol=1e-6)
    assert moved(adapter.teacher, vit)
    assert moved(adapter.model, adapter.teacher)


def test_predictions_are_the_teachers(vit: VisionModel) -> None:
    adapter = started(vit, learning_rate=1e-2, gather=8, threshold=EVER)
    for images in clean(adapter, 4, 8):
        with torch.no_grad():
            expected = copy.deepcopy(adapter.teacher).run(images).logits
        torch.testing.assert_close(adapter(images), expected)
        with torch.no_grad():
            expected = adapter.teacher.run(images).logits
        torch.testing.assert_close(adapter.predict(images), expected)
    with torch.no_grad():
        assert not torch.allclose(adapter.model.run(images).logits, expected, atol=1e-3)


# Small batches


def test_small_batches_are_predicted_at_once_and_learnt_from_together(vit: VisionModel) -> None:
    adapter, plain = started(vit, threshold=EVER, learning_rate=1e-2), Align(vit, threshold=EVER)
    plain.warm_up(clean(plain, 4, 20, seed=1))
    for number, images in enumerate(clean(adapter, 3, 16)):
        torch.testing.assert_close(adapter(images), plain(images))
        assert moved(adapter.model, vit) == moved(adapter.teacher, vit) == (number == 2)
        assert ("self_training_loss" in adapter.diagnostics) == (number == 2)
    assert adapter.waiting.content() == []


# Losses


def test_invariance_is_the_drift_from_the_prototypes(vit: VisionModel) -> None:
    adapter = started(vit)
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(6, 32, generator=generator).requires_grad_(True)
    taught = 3 * torch.randn(6, 10, generator=generator)
    adapter.drift.normal_(std=0.05, generator=generator)
    before = adapter.drift.clone()
    loss = adapter._invariance(features, taught)
    (gradient,) = torch.autograd.grad(loss, features)
    rest = torch.stack([
        (row - adapter.source_mean) / adapter.source_std
        - sum(p * prototype for p, prototype in zip(chances, adapter.class_prototypes, strict=True))
        for row, chances in zip(features.detach(), taught.softmax(1), strict=True)
    ]).mean(0)  # fmt: skip
    drift = (400 * before + 6 * rest) / 406
    torch.testing.assert_close(adapter.drift, drift, rtol=1e-4, atol=1e-5)
    assert float(loss.detach()) == pytest.approx(float((drift.sign() * rest).mean()), rel=1e-4)
    expected = drift.sign() / adapter.source_std / (6 * 32)
    torch.testing.assert_close(gradient, expected.expand(6, 32), rtol=1e-4, atol=1e-8)
    assert bool((before.sign() != rest.sign()).any())


def test_the_sketch_of_the_features_is_that_of_the_source(vit: VisionModel) -> None:
    adapter = started(vit)
    with torch.no_grad():
        output = vit(torch.cat(clean(adapter, 4, 20, seed=1)))
    features, shares = output.features.double(), output.logits.double().softmax(1)
    scaled = (features - features.mean(0)) / features.std(0)
    torch.testing.assert_close(adapter.source_mean.double(), features.mean(0), rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(adapter.source_std.double(), features.std(0), rtol=1e-2, atol=1e-5)
    for number in range(10):
        total = sum(share * row for share, row in zip(shares[:, number], scaled, strict=True))
        expected = total / (shares[:, number].sum() + 2)
        torch.testing.assert_close(adapter.class_prototypes[number].double(), expected, rtol=2e-2, atol=1e-3)


def test_frequent_classes_become_rarer(vit: VisionModel) -> None:
    adapter = started(vit, memory=100)
    mix = torch.full((10,), 0.1 / 9)
    mix[3] = 0.9
    adapter.mix.copy_(mix)
    logits = torch.randn(8, 10, generator=torch.Generator().manual_seed(0)).requires_grad_(True)
    loss = adapter._diversity(logits)
    (gradient,) = torch.autograd.grad(loss, logits)
    chances = logits.detach().softmax(1)
    after = (100 * mix + 8 * chances.mean(0)) / 108
    torch.testing.assert_close(adapter.mix, after)
    # d / d z_c of the sum of p log q is p_c (log q_c - its mean under p)
    log = after.log()
    expected = chances * (log - (chances * log).sum(1, keepdim=True)) / 8
    torch.testing.assert_close(gradient, expected, rtol=1e-4, atol=1e-7)
    assert bool((gradient[:, 3] > 0).all())
    with torch.no_grad():
        lower = (logits - 0.1 * gradient).softmax(1).mean(0)
    assert float(lower[3]) < float(chances.mean(0)[3])


@pytest.mark.parametrize("name", ["diversity", "invariance"])
def test_a_weight_multiplies_its_loss_and_zero_leaves_it_out(name: str, vit: VisionModel) -> None:
    def losses(weight: float) -> dict[str, float]:
        adapter = started(vit, gather=8, **{f"{name}_weight": weight})
        adapter(clean(adapter, 1, 8)[0])
        return {key: float(value) for key, value in adapter.diagnostics.items() if key.endswith("_loss")}

    off, one, two = losses(0.0), losses(1.0), losses(2.0)
    own = f"{name}_loss"
    assert set(one) == {"self_training_loss", "diversity_loss", "invariance_loss"}
    assert set(off) == set(one) - {own}
    assert two == pytest.approx({**one, own: 2 * one[own]}, rel=1e-4, abs=1e-6)


# Beside align


@pytest.mark.parametrize("kind", ["vit", "cnn"])
def test_without_learning_it_is_align(kind: str, request: pytest.FixtureRequest) -> None:
    model: VisionModel = request.getfixturevalue(kind)
    adapter = started(model, learning_rate=0.0, diversity_weight=0.0, invariance_weight=0.0, threshold=5.0)
    plain = Align(model, threshold=5.0)
    plain.warm_up(clean(plain, 4, 20, seed=1))
    changes = 0
    for images in stream(adapter, 6, 40):
        torch.testing.assert_close(adapter(images), plain(images), rtol=1e-4, atol=1e-4)
        assert adapter.diagnostics["change"] == plain.diagnostics["change"]
        changes += bool(plain.diagnostics["change"])
        torch.testing.assert_close(adapter.predict(images), plain.predict(images), rtol=1e-4, atol=1e-4)
    assert changes == (kind == "vit")


def test_a_new_domain_reaches_the_memory_of_the_student(vit: VisionModel) -> None:
    adapter = started(vit, learning_rate=0.0, threshold=5.0)
    given = stream(adapter, 4, 40)
    for images in given[:3]:
        adapter(images)
    assert adapter.diagnostics["change"]
    assert adapter.model.alignment is not None
    assert adapter.teacher.alignment is not None
    # with equal weights both have seen the same; the student has learnt from the batch besides
    for own, other in zip(adapter.model.alignment.stream(), adapter.teacher.alignment.stream(), strict=True):
        assert (float(own.images), float(other.images)) == (80, 40)
        torch.testing.assert_close(own.mean, other.mean, rtol=0.05, atol=0.05)


def test_mirrored_predictions_are_the_mean_of_both(vit: VisionModel) -> None:
    settings = {"learning_rate": 0.0, "threshold": EVER}
    mirrored, plain = started(vit, mirror=True, **settings), started(vit, **settings)
    for images in clean(plain, 3, 12):
        one = plain(images)
        with torch.no_grad():
            other = plain.teacher.run(images.flip(-1)).logits
        found = mirrored(images)
        expected = (one.softmax(1) + other.softmax(1)) / 2
        torch.testing.assert_close(found.softmax(1), expected, rtol=1e-4, atol=1e-6)
        assert not torch.allclose(found.softmax(1), one.softmax(1), atol=1e-4)
        rest = found - expected.log()
        torch.testing.assert_close(rest, rest[:, :1].expand_as(rest), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("kind", ["vit", "cnn"])
def test_without_sites_it_learns_without_aligned_tokens(kind: str, request: pytest.FixtureRequest) -> None:
    model: VisionModel = request.getfixturevalue(kind)
    adapter = started(model, sites=0, gather=8, learning_rate=1e-3)
    for part in (adapter.model, adapter.teacher):
        assert part.alignment is not None
        assert len(part.alignment.sites) == 0
        assert len(part.alignment.norm_sites) == (3 if kind == "cnn" else 0)
    for images in stream(adapter, 4, 8):
        assert bool(adapter(images).isfinite().all())
        assert not adapter.diagnostics["change"]
    assert adapter.skipped == 0
    assert moved(adapter.teacher, model)


def test_graphs_are_for_a_gpu_alone(vit: VisionModel) -> None:
    one, other = started(vit, gather=8, cuda_graphs=True), started(vit, gather=8)
    for images in stream(one, 3, 8):
        assert torch.equal(one(images), other(images))
    assert same_state(one, other) is None


# Batches of few classes


@pytest.mark.parametrize(("classes", "learns"), [(1, False), (3, False), (8, True), (10, True)])
def test_a_batch_of_few_classes_is_not_learnt_from(classes: int, learns: bool, vit: VisionModel) -> None:
    adapter = started(vit, learning_rate=1e-2)
    images = clean(adapter, 1, 40)[0]
    taught = 20 * torch.nn.functional.one_hot(torch.arange(40) % classes, vit.classes).float()
    before = copy.deepcopy(adapter.model)
    diagnostics = adapter._learn(images, taught)
    assert bool(diagnostics["learnt"]) is learns
    assert moved(adapter.model, before) is learns


def test_of_few_images_few_classes_are_enough(vit: VisionModel) -> None:
    adapter = started(vit, learning_rate=1e-2, gather=1)
    assert bool(adapter._balanced(20 * torch.eye(vit.classes)[:1]))
    assert bool(adapter._balanced(20 * torch.eye(vit.classes)[:3]))


def test_after_batches_of_one_class_many_classes_are_not_believed(vit: VisionModel) -> None:
    adapter = started(vit, memory=100)
    of_one = 20 * torch.eye(vit.classes)[:1].expand(40, -1)
    of_all = 20 * torch.eye(vit.classes).repeat(4, 1)
    assert not any(adapter._balanced(of_one) for _ in range(5))
    seen = [bool(adapter._balanced(of_all)) for _ in range(6)]
    assert seen[0] is False
    assert seen[-1] is True  # until there have been enough of them
    assert seen == sorted(seen)


# The view that the student learns from


def test_the_student_learns_from_a_changed_view_that_the_seed_draws(vit: VisionModel) -> None:
    def adapted(seed: int, strength: float) -> TestDGAligned:
        adapter = started(vit, seed=seed, augmentation=strength, learning_rate=1e-3)
        for images in clean(adapter, 2, 40):
            adapter(images)
        return adapter

    plain, one, again, other = adapted(0, 0.0), adapted(0, 1.0), adapted(0, 1.0), adapted(1, 1.0)
    assert not moved(one.model, again.model)
    assert moved(one.model, plain.model)
    assert moved(one.model, other.model)
    assert not moved(plain.model, adapted(1, 0.0).model)  # without a view nothing is drawn
