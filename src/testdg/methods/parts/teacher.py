"""The teacher: an exponential moving average of a model."""

import copy
from typing import TypeVar

import torch
from torch import Tensor, nn

M = TypeVar("M", bound=nn.Module)


def frozen_copy(module: M) -> M:
    """Copy a module whose parameters will not be trained; BatchNorm layers that use the batch at hand go on so."""
    copied = copy.deepcopy(module).eval().requires_grad_(False)
    for mine, other in zip(copied.modules(), module.modules(), strict=True):
        if uses_batch(other):
            mine.train()
    return copied


def uses_batch(layer: nn.Module) -> bool:
    """Whether a layer normalises by the statistics of the batch at hand."""
    if not isinstance(layer, nn.modules.batchnorm._BatchNorm):
        return False
    return getattr(layer, "of_batch", False) or (layer.training and not layer.track_running_stats)


@torch.no_grad()
def ema_update(average: nn.Module, module: nn.Module, momentum: float, *, buffers: bool = True) -> None:
    """Move an average towards a module: average = momentum average + (1 - momentum) module, one fused operation.

    Floating buffers (BatchNorm statistics) are averaged too, and counters copied, unless `buffers` are its own.
    """
    if not buffers:
        torch._foreach_lerp_(list(average.parameters()), list(module.parameters()), 1 - momentum)
        return
    ours, theirs = _floating(average), _floating(module)
    torch._foreach_lerp_(ours, theirs, 1 - momentum)
    for mine, other in zip(average.buffers(), module.buffers(), strict=True):
        if not mine.is_floating_point():
            mine.copy_(other)


def _floating(module: nn.Module) -> list[Tensor]:
    tensors = [*module.parameters(), *module.buffers()]
    return [tensor.detach() for tensor in tensors if tensor.is_floating_point()]
