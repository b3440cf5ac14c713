"""Adapters in known states, for the tests of TestDG."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from testdg.methods.testdg import TestDG
from testdg.methods.testdg.released import LateDetector
from testdg.models import VisionModel
from testdg.testing import stream

NEVER, ALWAYS = 10.0, -1.0  # thresholds of the detector

BASE: dict[str, Any] = {
    "threshold": NEVER,
    "learning_rate": 1e-3,
    "discrimination_weight": 1.0,
    "invariance_weight": 0.5,
    "queue_length": 32,
    "prototypes": 8,
    "rank": 4,
    "momentum": 0.9,
    "amplifier_learning_rate": 2e-3,
    "extractor_learning_rate": 1e-2,
    "prototype_steps": 2,
}
"""Rates and weights at which small models move within a few batches."""


def make(model: VisionModel, **settings: Any) -> TestDG:
    return TestDG(model, **{**BASE, **settings})


def change(adapter: TestDG, images: Tensor) -> None:
    """A batch that the detector takes for the first of a new domain."""
    detector = adapter.detector
    usual, detector.threshold = detector.threshold, ALWAYS
    if isinstance(detector, LateDetector):  # it acts on the jump of the batch before
        detector.due, detector.threshold = True, NEVER
    adapter(images)
    detector.threshold = usual
    assert adapter.diagnostics["change"] is True


def second_domain(model: VisionModel, **settings: Any) -> tuple[TestDG, Iterator[Tensor]]:
    """An adapter that has prototypes of a first domain, and the batches that follow."""
    adapter = make(model, **settings)
    batches = iter(stream(adapter, 10, 6))
    adapter(next(batches))
    adapter(next(batches))
    change(adapter, next(batches))
    return adapter, batches


def parts(adapter: TestDG) -> dict[str, list[Tensor]]:
    """Everything that TestDG may change, by part."""
    modules = {
        "model": adapter.model, "extractor": adapter.extractor, "discriminator": adapter.discriminator,
        "amplifier": adapter.amplifier, "teacher": adapter.teacher,
        "teacher_amplifier": getattr(adapter, "teacher_amplifier", None),
    }  # fmt: skip
    found = {name: list(module.state_dict().values()) for name, module in modules.items() if module is not None}
    return {**found, "prototypes": [adapter.prototypes.current]}


def copied(adapter: TestDG) -> dict[str, list[Tensor]]:
    return {name: [tensor.clone() for tensor in tensors] for name, tensors in parts(adapter).items()}


def moved(adapter: TestDG, before: dict[str, list[Tensor]]) -> set[str]:
    """Parts that are not what they were, bit for bit."""
    now = parts(adapter)
    return {
        name
        for name, tensors in now.items()
        if len(tensors) != len(before[name])
        or not all(torch.equal(a, b) for a, b in zip(tensors, before[name], strict=True))
    }


def layers(network: nn.Module) -> list[Any]:
    """Weight shapes of the linear layers, and the types of the others."""
    return [tuple(x.weight.shape) if isinstance(x, nn.Linear) else type(x) for x in network.children()]


DOMAIN = {"extractor", "discriminator", "amplifier"}
