"""Less memory for a backward pass under autocast, at the precision that its layers compute in anyway."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from testdg.models import VisionModel


def lean_norms(model: VisionModel) -> None:
    """Let LayerNorms give what the linear layers after them read: one copy in their precision instead of one each."""
    for _, layer in model.norm_layers():
        if isinstance(layer, nn.LayerNorm):
            layer.register_forward_hook(_in_precision)


def _in_precision(_: nn.Module, __: Any, output: Tensor) -> Tensor:
    kind = output.device.type
    return output.to(torch.get_autocast_dtype(kind)) if torch.is_autocast_enabled(kind) else output


@contextmanager
def passed_again(blocks: Iterable[nn.Module]) -> Iterator[None]:
    """Keep only what enters these blocks; the backward pass runs them once more.

    The first block of a network saves the most: when it is run again, what all others kept is free.
    """
    blocks = list(blocks)
    for block in blocks:
        block.forward = partial(checkpoint, block.forward, use_reentrant=False, preserve_rng_state=False)
    try:
        yield
    finally:
        for block in blocks:
            del block.forward


@contextmanager
def lean_graph(kind: str) -> Iterator[None]:
    """Keep the tokens that a backward pass needs at the precision of autocast, where it is on."""
    if not torch.is_autocast_enabled(kind):
        yield
        return
    low = torch.get_autocast_dtype(kind)

    def pack(value: Tensor) -> tuple[Tensor, torch.dtype]:
        tokens = value.dtype == torch.float32 and value.ndim == 3
        return (value.to(low) if tokens else value), value.dtype

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda kept: kept[0].to(kept[1])):
        yield
