"""Passes of an adapter, counted."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from testdg.methods import Adapter
from testdg.models import VisionModel


@contextmanager
def counted(adapter: Adapter) -> Iterator[dict[str, int]]:
    """Count the images that go forward through each network of an adapter, by attribute name, and its backwards."""
    counts: dict[str, int] = {"backward": 0}
    plain = torch.autograd.grad

    def forward(owner: str) -> Any:
        def hook(_: Any, inputs: tuple[Any, ...]) -> None:
            counts[owner] = counts.get(owner, 0) + len(inputs[0])

        return hook

    def grad(*arguments: Any, **options: Any) -> Any:
        counts["backward"] += 1
        return plain(*arguments, **options)

    owners = [(name, child) for name, child in adapter.named_children() if isinstance(child, VisionModel)]
    handles = [child.register_forward_pre_hook(forward(name)) for name, child in owners]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.autograd, "grad", grad)
        yield counts
    for handle in handles:
        handle.remove()
