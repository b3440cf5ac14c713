"""What a batch costs: passes and floating-point operations."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor

from support.testdg_cases import change, make, second_domain
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
        wanted = {id(inputs)} if isinstance(inputs, Tensor) else {id(p) for p in inputs}
        counts["full backward"] += bool(wanted & encoder)
        counts["amplifier backward"] += bool(wanted & domain)
        assert not (wanted & encoder and wanted & domain), "one backward pass serves both steps"
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


def test_a_step_is_ten_forward_equivalents_and_eleven_before_the_first_change(vit: VisionModel) -> None:
    adapter = make(vit)
    batches = stream(adapter, 4)
    with counted(adapter) as first:
        adapter(batches[0])
    assert first == {"teacher": 1, "student": 5, "amplifier backward": 1, "full backward": 2}
    assert equivalents(first) == 11
    change(adapter, batches[1])
    with counted(adapter) as later:
        adapter(batches[2])
    assert later == {"teacher": 1, "student": 4, "amplifier backward": 1, "full backward": 2}
    assert equivalents(later) == 10


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"predict": "student"}, 10),
        ({"prototype_update": False}, 10),
        ({"discrimination": False}, 8),
        ({"invariance": False}, 7),
        ({"amplifier": False}, 5),
        ({"discrimination": False, "amplifier": False}, 5),
        ({"discrimination": False, "invariance": False}, 4),
        ({"as_released": True}, 7),
        ({"as_released": True, "discrimination": False}, 7),
        ({"as_released": True, "released_for": "cifar100-c"}, 6),
    ],
    ids=str,
)
def test_what_options_cost(vit: VisionModel, settings: dict[str, Any], expected: int) -> None:
    adapter, batches = second_domain(vit, **settings)
    if settings.get("as_released"):
        adapter.batches = 20  # L_inv takes part
    with counted(adapter) as counts:
        adapter(next(batches))
    assert equivalents(counts) == expected


@pytest.mark.parametrize(("settings", "expected"), [({"amplifier": False}, 6), ({"as_released": True}, 7)], ids=str)
def test_what_the_first_batch_costs(vit: VisionModel, settings: dict[str, Any], expected: int) -> None:
    adapter = make(vit, **settings)
    with counted(adapter) as counts:
        adapter(stream(adapter, 1)[0])
    assert equivalents(counts) == expected


def test_prediction_is_one_pass(vit: VisionModel) -> None:
    adapter, batches = second_domain(vit)
    with counted(adapter) as counts:
        adapter.predict(next(batches))
    assert equivalents(counts) == 1
