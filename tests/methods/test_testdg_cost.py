"""What a batch costs: passes and floating-point operations."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor

from support.testdg_cases import change, make
from testdg.methods.testdg import TestDG
from testdg.models import VisionModel
from testdg.testing import stream


@contextmanager
def counted(adapter: TestDG) -> Iterator[dict[str, int]]:
    """Count passes through the networks: forward by owner, backward by what receives gradients."""
    counts = {"teacher": 0, "student": 0, "amplifier backward": 0, "full backward": 0}
    encoder = {id(p) for p in adapter.model.parameters()}
    domain = set() if adapter.amplifier is None else {id(p) for p in adapter.amplifier.parameters()}
    plain = torch.autograd.grad

    def forward(owner: str) -> Any:
        def hook(*_: Any) -> None:
            counts[owner] += 1

        return hook

    def grad(outputs: Any, inputs: Any, *arguments: Any, **options: Any) -> Any:
        expected = {id(inputs)} if isinstance(inputs, Tensor) else {id(p) for p in inputs}
        counts["full backward"] += bool(expected & encoder)
        counts["amplifier backward"] += bool(expected & domain)
        assert not (expected & encoder and expected & domain), "one backward pass serves both steps"
        return plain(outputs, inputs, *arguments, **options)

    handles = [
        adapter.teacher.network.register_forward_hook(forward("teacher")),
        adapter.model.network.register_forward_hook(forward("student")),
    ]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.autograd, "grad", grad)
        yield counts
    for handle in handles:
        handle.remove()


def equivalents(counts: dict[str, int]) -> int:
    """Forward-equivalents: a full backward pass is two, one to the adapters alone is one."""
    return counts["teacher"] + counts["student"] + counts["amplifier backward"] + 2 * counts["full backward"]


@pytest.mark.parametrize(
    ("settings", "first", "later"),
    [
        ({}, 11, 10),
        ({"predict": "student"}, 11, 10),
        ({"prototype_update": False}, 11, 10),
        ({"discrimination": False}, 9, 8),
        ({"invariance": False}, 8, 7),
        ({"amplifier": False}, 6, 5),
        ({"discrimination": False, "amplifier": False}, 6, 5),
        ({"discrimination": False, "invariance": False}, 4, 4),
        ({"as_released": True}, 7, 7),
        ({"as_released": True, "discrimination": False}, 7, 7),
        ({"as_released": True, "released_for": "cifar100-c"}, 7, 6),
    ],
    ids=str,
)
def test_forward_equivalents_before_and_after_the_first_change(
    vit: VisionModel, settings: dict[str, Any], first: int, later: int
) -> None:
    adapter = make(vit, **settings)
    batches = stream(adapter, 4)
    with counted(adapter) as counts:
        adapter(batches[0])
    assert equivalents(counts) == first
    change(adapter, batches[1])
    if settings.get("as_released"):
        adapter.batches = 20  # L_inv takes part
    with counted(adapter) as counts:
        adapter(batches[2])
    assert equivalents(counts) == later
    with counted(adapter) as counts:
        adapter.predict(batches[3])
    assert equivalents(counts) == 1
