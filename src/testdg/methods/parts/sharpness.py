"""Sharpness-aware steps: look at the loss where it is highest nearby, step from where you are."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn


@contextmanager
def at_the_peak(
    parameters: Sequence[nn.Parameter], gradients: Sequence[Tensor | None], radius: float
) -> Iterator[None]:
    """Move the parameters up the gradient by `radius` in all, and back, bit for bit, at the end."""
    used = [(p.detach(), g) for p, g in zip(parameters, gradients, strict=True) if g is not None]
    before = [p.clone() for p, _ in used]
    norm = torch.stack(torch._foreach_norm([g for _, g in used])).norm()
    with torch.no_grad():
        for parameter, gradient in used:
            parameter += radius / (norm + 1e-12) * gradient
    try:
        yield
    finally:
        for (parameter, _), old in zip(used, before, strict=True):
            parameter.copy_(old)
