"""Is a model still itself: what a probe shows, at which cost, and what it is compared with."""

import math
from pathlib import Path

import pytest
import torch
from torch import Tensor

from testdg import Preprocessing, adapt, guard, load_model
from testdg.core.guard.probe import BLENDS, LIMITS, STREAM_LIMIT, Predict, Probe, blended
from testdg.core.online import load_online
from testdg.models import TinyViT
from testdg.testing import stream

IMAGES, PART = 100, 25
SURE = torch.tensor([2.0, 0.0])
"""Logits of the source: a change costs the difference of both probabilities, 0.76."""
LOSS = math.tanh(1)


def probe(source: Tensor = SURE, origin: str = "source") -> Probe:
    generator = torch.Generator().manual_seed(0)
    images = torch.rand(IMAGES, 3, 8, 8, generator=generator)
    made = Probe(images if origin == "source" else None, "classification")
    made.weights = True
    if origin == "stream":
        made.collect(images, torch.tensor([9.0, 0.0]).repeat(IMAGES, 1))
    made.begin(lambda part: torch.tensor([1.0, 0.0]).repeat(len(part), 1), lambda part: source.repeat(len(part), 1))
    return made


def changing(share: float) -> Predict:
    """Predictions of which a share, evenly spread over the probe, differ from the first."""
    predicted = 0

    def predict(images: Tensor) -> Tensor:
        nonlocal predicted
        numbers = torch.arange(predicted, predicted + len(images))
        predicted += len(images)
        changed = ((numbers + 1) * share).floor() > (numbers * share).floor()
        return torch.stack([~changed, changed], 1).float()

    return predict


def test_the_limit_is_one_of_probability_lost() -> None:
    share = LIMITS["classification"] / LOSS
    assert probe().trouble(changing(share - 0.02), 0)[0] is None
    trouble, _ = probe().trouble(changing(share + 0.02), 0)
    assert trouble is not None
    assert trouble.code == "probe-changed"
    unsure = torch.tensor([0.02, 0.0])  # both classes are nearly as likely
    assert probe(unsure).trouble(changing(1.0), 0)[0] is None


def test_a_probe_of_the_stream_is_judged_leniently() -> None:
    made = probe(origin="stream")
    assert not made.blends
    assert made.trouble(changing(STREAM_LIMIT - 0.05), 0)[0] is None
    assert made.trouble(changing(STREAM_LIMIT + 0.05), 0)[0] is not None


@pytest.mark.parametrize(("share", "predicted"), [(0.0, PART), (0.052, IMAGES), (1.0, IMAGES)])
def test_a_part_is_enough_where_little_has_changed(share: float, predicted: int) -> None:
    assert probe().trouble(changing(share), 0)[1] == predicted


@pytest.mark.parametrize("turn", [0, 1, 5])
def test_each_check_begins_with_another_part(turn: int) -> None:
    made, seen = probe(), []

    def predict(images: Tensor) -> Tensor:
        seen.append(images)
        return torch.tensor([1.0, 0.0]).repeat(len(images), 1)

    made.trouble(predict, turn)
    assert made.images is not None
    (part,) = seen
    assert torch.equal(part, blended(made.images, BLENDS["image"])[PART * (turn % 4) :][:PART])


def test_a_blend_has_the_mean_and_the_contrast_of_its_image() -> None:
    images = 0.4 + 0.1 * torch.rand(40, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    found = blended(images, 0.6)
    torch.testing.assert_close(found.mean((1, 2, 3)), images.mean((1, 2, 3)))
    torch.testing.assert_close(found.flatten(1).std(1), images.flatten(1).std(1), rtol=0.1, atol=0)
    assert torch.equal(blended(images[:1], 0.6), images[:1])


@pytest.mark.parametrize(("method", "least"), [("tent", PART), ("align", PART), ("testdg_aligned", 70)])
def test_predictions_that_depend_on_the_batch_need_all_images_at_once(method: str, least: int, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = load_model(TinyViT(), preprocessing=Preprocessing((32, 32)))
    images = torch.rand(70, 3, 32, 32)
    adapter = guard(adapt(model, method), images)
    if adapter.awaits_source:
        adapter.warm_up([images])
    adapter(images[:20])
    assert adapter.probe.least == least
    adapter.save(tmp_path / "state")
    again = load_online(tmp_path / "state", model).guard
    assert again is not None
    assert (again.probe.least, again.probe.limit) == (least, adapter.probe.limit)


def test_probabilities_are_those_of_the_source_whatever_a_method_puts_in_place_of_logits() -> None:
    """ROID predicts shares of classes, corrected by a prior, in place of logits."""
    torch.manual_seed(0)
    model = load_model(TinyViT(), preprocessing=Preprocessing((32, 32)))
    images = torch.rand(20, 3, 32, 32)
    guarded = guard(adapt(model, "roid"), images)
    guarded(next(iter(stream(guarded.adapter, 1, 8))))
    assert guarded.probe.shares is not None
    with torch.no_grad():
        expected = model(model.prepare(blended(images, BLENDS["image"]))).logits.softmax(1)
    torch.testing.assert_close(guarded.probe.shares, expected)
