"""COME: the entropy of an opinion as the loss of TENT, EATA and SAR."""

import math
from typing import Any

import pytest
import torch
from passes import confident

from testdg import adapt
from testdg.methods.eata import Eata
from testdg.methods.parts.entropy import entropy, opinion_entropy
from testdg.methods.sar import Sar
from testdg.methods.tent import Tent
from testdg.models import VisionModel
from testdg.testing import CHECKS, check_adapter, stream

HOSTS: dict[str, dict[str, Any]] = {"tent": {}, "eata": {"fisher": False}, "sar": {"recovery": 0.0}}


@pytest.mark.parametrize("host", HOSTS)
def test_a_host_keeps_every_law(vit: VisionModel, host: str) -> None:
    ran = check_adapter(lambda **settings: adapt(vit, host, **{**settings, **HOSTS[host], "loss": "come"}))
    assert ran == list(CHECKS)


def test_a_step_of_tent_is_down_the_opinion(vit: VisionModel) -> None:
    adapter, twin = (Tent(vit, learning_rate=0.1, optimizer="momentum", loss="come") for _ in range(2))
    images = stream(adapter, 1)[0]
    adapter(images)
    parameters = twin.learner.parameters_
    gradients = torch.autograd.grad(opinion_entropy(twin.model(images).logits).mean(), parameters)
    for moved, old, gradient in zip(adapter.learner.parameters_, parameters, gradients, strict=True):
        torch.testing.assert_close(moved, old - 0.1 * gradient)


@pytest.mark.parametrize("host", HOSTS)
def test_another_loss_is_another_step(vit: VisionModel, host: str) -> None:
    model = confident(vit, 5.0)
    one, other = (
        adapt(model, host, margin=2.0, **HOSTS[host], loss=loss) if host != "tent" else adapt(model, host, loss=loss)
        for loss in ("entropy", "come")
    )
    batches = stream(one, 2)
    assert torch.equal(one(batches[0]), other(batches[0]))  # the prediction is that from before the step
    assert not torch.equal(one(batches[1]), other(batches[1]))


@pytest.mark.parametrize(("host", "options"), [(Eata, {"fisher": False}), (Sar, {})])
@pytest.mark.parametrize("reliable_by", ["loss", "entropy"])
def test_what_is_reliable(vit: VisionModel, host: Any, options: dict[str, Any], reliable_by: str) -> None:
    adapter = host(confident(vit, 5.0), **options, loss="come", reliable_by=reliable_by)
    logits = adapter.infer(stream(adapter, 1, 12)[0])
    measure = opinion_entropy if reliable_by == "loss" else entropy
    _, reliable = adapter.settings.losses(logits)
    assert torch.equal(reliable, measure(logits) < 0.4 * math.log(10))


def test_ignorance_is_reliable_only_to_the_opinion(vit: VisionModel) -> None:
    ignorant = torch.full((1, 10), -10.0)
    for reliable_by, expected in (("loss", True), ("entropy", False)):
        _, reliable = Sar(vit, loss="come", reliable_by=reliable_by).settings.losses(ignorant)
        assert bool(reliable) is expected
