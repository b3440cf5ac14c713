"""Versatile, as reconstructed: thresholds, correction, weights, alignment, and one batch by the book."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from support.literal import assert_close, average, same
from testdg.methods.versatile import AdaptiveThresholds, RunningMean, Versatile, correct, diversity_weights
from testdg.models import VisionModel
from testdg.testing import stream


def probabilities(count: int, classes: int, seed: int = 0) -> Tensor:
    return torch.randn(count, classes, generator=torch.Generator().manual_seed(seed)).mul(2).softmax(1)


# Labels


def test_thresholds_are_the_formula() -> None:
    thresholds = AdaptiveThresholds(4, 0.9, torch.device("cpu"))
    tau, profile = 0.25, [0.25] * 4
    for seed in range(5):
        p = probabilities(6, 4, seed)
        found = thresholds.update(p)
        tau = 0.9 * tau + 0.1 * sum(max(row) for row in p.double().tolist()) / 6
        profile = [0.9 * q + 0.1 * float(p[:, c].double().mean()) for c, q in enumerate(profile)]
        expected = [max(tau * q / max(profile), 0.25) for q in profile]
        assert found.tolist() == pytest.approx(expected, rel=1e-5)
    assert max(expected) > 0.25


def test_an_unsure_label_is_mixed_with_that_of_the_source_by_confidence() -> None:
    teacher = torch.tensor([[0.6, 0.4], [0.6, 0.4], [0.9, 0.1]])
    source = torch.tensor([[0.2, 0.8], [0.7, 0.3], [0.1, 0.9]])
    labels, reliable = correct(teacher, source, torch.tensor([0.7, 0.5]))
    share = 0.6 / (0.6 + 0.8)
    assert labels[0].tolist() == pytest.approx([share * 0.6 + (1 - share) * 0.2, share * 0.4 + (1 - share) * 0.8])
    share = 0.6 / (0.6 + 0.7)
    assert labels[1].tolist() == pytest.approx([share * 0.6 + (1 - share) * 0.7, share * 0.4 + (1 - share) * 0.3])
    assert torch.equal(labels[2], teacher[2])
    assert reliable.tolist() == [False, True, True]  # the second is promoted: both say the first class


def test_weights_of_one_image_and_of_equal_images() -> None:
    label = torch.tensor([[0.5, 0.25, 0.25]])
    usual = torch.full((3,), 1 / 3)
    assert diversity_weights(label, usual, 1 / 3).tolist() == [1]
    assert diversity_weights(label.expand(4, 3), usual, 0.5).tolist() == pytest.approx([math.exp(2)] * 4)
    certain = torch.eye(3)[:2]
    assert bool(diversity_weights(certain, usual, 1 / 3).isfinite().all())


def test_what_is_not_finite_does_not_enter_a_running_mean() -> None:
    mean = RunningMean(torch.tensor([1.0, 2.0]), 0.5)
    assert mean.update(torch.tensor([math.nan, 4.0])).tolist() == [1.0, 3.0]


# One batch


def by_the_book(adapter: Versatile, images: Tensor, optimizer: torch.optim.Optimizer, means: dict[str, Any]) -> Tensor:
    s, classes = adapter.settings, adapter.model.classes
    with torch.no_grad():
        taught = adapter.teacher(images).logits
        p, q = taught.double().softmax(1), adapter.source(images).logits.double().softmax(1)
    means["tau"] = 0.99 * means["tau"] + 0.01 * p.amax(1).mean()
    means["profile"] = 0.99 * means["profile"] + 0.01 * p.mean(0)
    bounds = (means["tau"] * means["profile"] / means["profile"].max()).clamp(min=1 / classes)
    labels, certainty = [], []
    for row, source in zip(p, q, strict=True):
        if row.max() >= bounds[row.argmax()]:
            labels.append(row)
            certainty.append(1.0)
        else:
            share = row.max() / (row.max() + source.max())
            labels.append(share * row + (1 - share) * source)
            certainty.append(1.0 if row.argmax() == source.argmax() else s.unreliable_weight)
    y = torch.stack(labels)
    means["usual"] = 0.9 * means["usual"] + 0.1 * y.mean(0)
    u, v = 1 - torch.cosine_similarity(y, means["usual"][None]), (y * y.log()).sum(1)
    u, v = ((x - x.min()) / (x.max() - x.min()) for x in (u, v))
    weights = (3 * u * v).exp() * torch.tensor(certainty)
    log_z = adapter.model(adapter.augment(images, adapter.generator)).logits.log_softmax(1)
    optimizer.zero_grad()
    (-(weights * (y * log_z).sum(1)).mean()).backward()
    optimizer.step()
    average(adapter.teacher, adapter.model, s.momentum)
    average(adapter.model, adapter.source, 1 - s.alignment)
    return taught


def test_four_batches_by_the_book(vit: VisionModel) -> None:
    settings = {"learning_rate": 1e-2, "momentum": 0.5, "alignment": 0.1}
    adapter, other = Versatile(vit, **settings), Versatile(vit, **settings)
    optimizer = torch.optim.Adam(other.learner.parameters_, lr=1e-2)
    uniform = torch.full((10,), 0.1, dtype=torch.float64)
    means = {"tau": 0.1, "profile": uniform, "usual": uniform}
    for images in stream(adapter, 4):
        expected = by_the_book(other, images, optimizer, means)
        torch.testing.assert_close(adapter(images), expected, rtol=1e-3, atol=1e-3)
    assert_close(adapter.model, other.model, rtol=1e-2, atol=2e-3)


@pytest.mark.parametrize("trained", ["norm", "all"])
def test_full_alignment_is_the_source_after_every_step(vit: VisionModel, trained: str) -> None:
    adapter = Versatile(vit, trained=trained, alignment=1.0, learning_rate=1e-2, momentum=0.5)
    for images in stream(adapter):
        adapter(images)
        assert same(adapter.model, vit)
    assert not same(adapter.teacher, vit)  # it averaged the model before the way back
