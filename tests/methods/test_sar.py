"""SAR: sharpness, the choice of layers and images, and the way back from a collapse."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from support.literal import literal_loss
from support.networks import confident
from testdg.core.learner import moments
from testdg.methods.sar import Sar, at_the_peak
from testdg.models import VisionModel
from testdg.testing import stream


def reliable_mean(adapter: Sar, images: Tensor, mask: list[bool] | None = None) -> tuple[Tensor, list[bool]]:
    """The mean entropy below the limit, image by image."""
    found: list[Tensor] = []
    kept = []
    for k, row in enumerate(adapter.model(images).logits):
        entropy = literal_loss(row, adapter.settings.loss)
        kept.append(float(entropy.detach()) < 0.4 * math.log(10) and (mask is None or mask[k]))
        found += [entropy] if kept[-1] else []
    return sum(found, torch.zeros(())) / len(found), kept


@pytest.mark.parametrize(("kind", "scale"), [("entropy", 5.0), ("come", 5.8)])
def test_a_step_is_the_formula(vit: VisionModel, kind: Any, scale: float) -> None:
    model = confident(vit, scale)
    adapter, twin = (Sar(model, learning_rate=0.1, radius=0.5, recovery=0.0, loss=kind) for _ in range(2))
    images = stream(adapter, 1, 12)[0]
    parameters = twin.learner.parameters_
    loss, mask = reliable_mean(twin, images)
    assert 0 < sum(mask) < 12
    first = torch.autograd.grad(loss, parameters)
    norm = math.sqrt(sum(float(gradient.double().square().sum()) for gradient in first))
    source = [p.detach().clone() for p in parameters]
    with torch.no_grad():
        for parameter, gradient in zip(parameters, first, strict=True):
            parameter += 0.5 * gradient / norm
    loss, _ = reliable_mean(twin, images, mask)
    second = torch.autograd.grad(loss, parameters)
    adapter(images)
    for parameter, old, gradient in zip(adapter.learner.parameters_, source, second, strict=True):
        torch.testing.assert_close(parameter, old - 0.1 * gradient, rtol=1e-3, atol=1e-6)


def test_the_peak_is_the_radius_away_and_left_exactly() -> None:
    parameters = [torch.nn.Parameter(torch.randn(4, generator=torch.Generator().manual_seed(k))) for k in range(3)]
    before = [p.detach().clone() for p in parameters]
    gradients = [torch.ones(4), None, torch.full((4,), 2.0)]
    with at_the_peak(parameters, gradients, 0.05):
        moved = torch.cat([p.detach() - old for p, old in zip(parameters, before, strict=True)])
        assert float(moved.norm()) == pytest.approx(0.05, rel=1e-4)
        assert not moved[4:8].any()
        assert float(moved[8] / moved[0]) == pytest.approx(2, rel=1e-3)
    assert all(torch.equal(p, old) for p, old in zip(parameters, before, strict=True))


def collapse(adapter: Sar, images: Tensor) -> None:
    """A last state in which every entropy is nearly zero: recovery must follow."""
    with torch.no_grad():
        adapter.model.network.get_submodule(adapter.model.head).get_parameter("weight").mul_(1e4)
    adapter(images)


@pytest.mark.parametrize("optimizer", ["momentum", "adam"])
def test_the_model_recovers_from_a_collapse(vit: VisionModel, optimizer: Any) -> None:
    adapter = Sar(confident(vit, 20.0), learning_rate=1e-2, optimizer=optimizer)
    batches = stream(adapter, 4)
    source = [p.detach().clone() for p in adapter.learner.parameters_]
    adapter(batches[0])
    assert not adapter.diagnostics["recovered"]
    assert not all(torch.equal(p, old) for p, old in zip(adapter.learner.parameters_, source, strict=True))
    adapter.usual.fill_(0.0)
    collapse(adapter, batches[1])
    assert bool(adapter.diagnostics["recovered"])
    assert all(torch.equal(p, old) for p, old in zip(adapter.learner.parameters_, source, strict=True))
    assert not any(value.any() for value in moments(adapter.learner.optimizer).values())
    assert float(adapter.usual) == math.inf


@pytest.mark.parametrize(("as_released", "again"), [(False, False), (True, True)])
def test_released_code_recovers_again_and_again(vit: VisionModel, as_released: bool, again: bool) -> None:
    adapter = Sar(confident(vit, 20.0), as_released=as_released)
    batches = stream(adapter, 2)
    adapter.usual.fill_(0.01)
    adapter(batches[0])
    assert bool(adapter.diagnostics["recovered"])
    adapter(batches[1])
    assert bool(adapter.diagnostics["recovered"]) is again


def test_the_threshold_of_a_collapse_follows_the_classes(vit: VisionModel) -> None:
    assert Sar(vit).collapsed == pytest.approx(0.2 / 3)  # ln 10 is a third of ln 1000
    assert Sar(vit, as_released=True).collapsed == 0.2


def test_unreliable_images_teach_nothing(vit: VisionModel) -> None:
    adapter = Sar(vit, learning_rate=0.1)  # random weights: every entropy is near ln 10
    before = {name: value.clone() for name, value in adapter.tensors().items()}
    adapter(stream(adapter, 1)[0])
    assert int(adapter.diagnostics["learnt_from"]) == 0
    assert all(torch.equal(value, before[name]) for name, value in adapter.tensors().items())
