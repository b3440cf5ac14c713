"""All weights of a model: frozen copies, the moving average of a teacher, and restoring the source weights."""

import copy
from collections.abc import Iterable, Sequence
from typing import TypeVar

import torch
from torch import Generator, Tensor, nn

M = TypeVar("M", bound=nn.Module)


def frozen_copy(module: M) -> M:
    """Copy a module for prediction: parameters are frozen; BatchNorm layers keep using the batch if they did."""
    copied = copy.deepcopy(module).eval().requires_grad_(False)
    for mine, other in zip(copied.modules(), module.modules(), strict=True):
        if uses_batch(other):
            mine.train()
    return copied


def uses_batch(layer: nn.Module) -> bool:
    """Whether a layer normalises by the statistics of the batch."""
    if not isinstance(layer, nn.modules.batchnorm._BatchNorm):
        return False
    return getattr(layer, "of_batch", False) or (layer.training and not layer.track_running_stats)


@torch.no_grad()
def ema_update(average: nn.Module, module: nn.Module, momentum: float, *, buffers: bool = True) -> None:
    """Update a moving average: average = momentum * average + (1 - momentum) * module, in one fused operation.

    With `buffers`, floating-point buffers (BatchNorm statistics) are averaged, too, and integer ones are copied.
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


def weights_and_biases(module: nn.Module) -> list[nn.Parameter]:
    """Parameters that are named `weight` or `bias`; the class token and position embedding of a ViT are not."""
    return [p for name, p in module.named_parameters() if name.rpartition(".")[2] in ("weight", "bias")]


@torch.no_grad()
def restore(parameters: Iterable[Tensor], source: Iterable[Tensor], share: float, generator: Generator) -> None:
    """Restore a random share of the values to the source, bit for bit."""
    for parameter, old in zip(parameters, source, strict=True):
        back = torch.rand(parameter.shape, generator=generator, device=parameter.device) < share
        parameter.copy_(torch.where(back, old, parameter))


class Anchor(nn.Module):
    """The source values of some parameters. They never change, so they are not part of the state."""

    def __init__(self, parameters: Sequence[nn.Parameter]) -> None:
        super().__init__()
        self.parameters_ = list(parameters)
        for number, parameter in enumerate(self.parameters_):
            self.register_buffer(str(number), parameter.detach().clone(), persistent=False)

    def values(self) -> list[Tensor]:
        """The source values, in the order of the parameters."""
        return list(self.buffers())

    @torch.no_grad()
    def pull(self, share: float) -> None:
        """Move the parameters this share of the way to their source values."""
        torch._foreach_lerp_([p.detach() for p in self.parameters_], self.values(), share)

    @torch.no_grad()
    def recover(self, when: Tensor) -> None:
        """Restore the source values if a flag on the device is True."""
        for parameter, source in zip(self.parameters_, self.values(), strict=True):
            parameter.copy_(torch.where(when, source, parameter))
