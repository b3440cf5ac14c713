"""Batches of TestDG against the same batches written out in plain torch: the paper, and what its code does."""

from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor

from support.testdg_references import AsReleased, AsWritten, Reference
from testdg.methods.testdg import TestDG
from testdg.models import VisionModel
from testdg.testing import stream

SETTINGS: dict[str, Any] = {
    "queue_length": 20, "prototypes": 6, "gamma": 0.7, "rank": 4,
    "discrimination_weight": 0.7, "invariance_weight": 0.6,
    "momentum": 0.9, "amplifier_momentum": 0.8, "optimizer": "sgd", "symmetric": True, "batch_norm": "source",
    "learning_rate": 2e-3, "amplifier_learning_rate": 3e-3, "extractor_learning_rate": 1e-3,
    "prototype_learning_rate": 0.01, "prototype_steps": 3,
    "self_training": True, "discrimination": True, "invariance": True, "prototype_update": True,
}  # fmt: skip


def stirred(model: VisionModel, settings: dict[str, Any]) -> TestDG:
    """An adapter whose amplifier is not zero and whose teacher is not its student, before its first batch."""
    adapter = TestDG(model, **settings)
    generator = torch.Generator().manual_seed(1)
    for name in ("amplifier", "teacher_amplifier", "teacher"):
        if getattr(adapter, name, None) is not None:
            for parameter in adapter.get_submodule(name).parameters():
                parameter.data += 0.02 * torch.randn(parameter.shape, generator=generator)
    return adapter


def jump(adapter: TestDG, batches: list[Tensor]) -> float:
    """A threshold that some steps of the confidence exceed."""
    values = []
    for images in batches:
        adapter(images)
        values.append(float(adapter.diagnostics["confidence"]))
    steps = sorted(abs(a - b) for a, b in pairwise(values))
    return (steps[-2] + steps[-3]) / 2


def compare(model: VisionModel, settings: dict[str, Any], kind: type[Reference], start: int = 0) -> TestDG:
    """Eight batches of the adapter are those of the reference; `start` is the number of the first batch."""
    batches = stream(TestDG(model, **settings), 8, 8)
    settings = {**settings, "threshold": jump(stirred(model, {**settings, "threshold": 10.0}), batches)}
    adapter = stirred(model, settings)
    reference: Any = kind(adapter, settings)
    adapter.batches = reference.number = start
    before = {name: value.clone() for name, value in adapter.named_parameters()}
    for images in batches:
        torch.testing.assert_close(adapter(images), reference.batch(images), rtol=1e-3, atol=1e-4)
        assert adapter.diagnostics["change"] is reference.changes[-1]
    assert set(reference.changes[1:]) == {True, False}
    assert not any(p.requires_grad or p.grad is not None for p in adapter.parameters())
    expected = dict(reference.networks().named_parameters())
    now = {name: value for name, value in adapter.named_parameters() if name in expected}
    assert now.keys() == expected.keys()
    for name, value in now.items():
        learnt, difference = ((value - other).norm() for other in (before[name], expected[name].detach()))
        assert difference < 1e-2 * learnt + 1e-6, f"{name} learnt {learnt:g} and differs by {difference:g}"
    assert len(adapter.queue) == len(reference.queue)
    if reference.queue:
        torch.testing.assert_close(adapter.prototypes.current, reference.prototypes, rtol=1e-2, atol=1e-3)
        torch.testing.assert_close(adapter.queue.content()[0], torch.stack(reference.queue), rtol=1e-2, atol=1e-3)
    return adapter


@pytest.mark.parametrize(
    "settings",
    [
        {"predict": "teacher"},
        {"predict": "student"},
        {"predict": "student", "symmetric": False},
        {"early": 5},
        {"discrimination": False, "invariance": False},
        {"amplifier": False},
        {"discrimination": False},
        {"invariance": False},
        {"self_training": False},
        {"prototype_update": False},
        {"discrimination": False, "invariance": False, "amplifier": False},
    ],
    ids=str,
)
@pytest.mark.parametrize("kind", ["vit", "cnn"])
def test_batches_are_what_the_paper_says(kind: str, settings: dict[str, Any], request: pytest.FixtureRequest) -> None:
    model: VisionModel = request.getfixturevalue(kind)
    gamma = {"vit": 0.7, "cnn": 100.0}[kind]  # about one over a squared distance of embeddings, as others give ties
    compare(model, {**SETTINGS, "gamma": gamma, "predict": "teacher", "early": 0, **settings}, AsWritten)


@pytest.mark.parametrize("symmetric", [False, True])
@pytest.mark.parametrize("start", [0, 20])  # L_inv is left out in the first 20 batches
@pytest.mark.parametrize("program", ["cifar10-c", "cifar100-c", "imagenet-c"])
@pytest.mark.parametrize("kind", ["vit", "cnn"])
def test_batches_are_what_the_released_code_does(
    kind: str, program: str, start: int, symmetric: bool, request: pytest.FixtureRequest
) -> None:
    model: VisionModel = request.getfixturevalue(kind)
    settings = {**SETTINGS, "as_released": True, "released_for": program, "symmetric": symmetric}
    adapter = compare(model, settings, AsReleased, start)
    assert ("invariance_loss" in adapter.diagnostics) == (start >= 20)
