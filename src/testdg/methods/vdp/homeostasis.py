"""Homeostasis: hold back what earlier domains depended on (synaptic intelligence, Zenke et al., ICML 2017)."""

import torch
from torch import Tensor, nn


class Homeostasis(nn.Module):
    """How much each value of a tensor mattered in finished domains, and where it stood at the end of the last one."""

    importance: Tensor
    path: Tensor
    anchor: Tensor

    def __init__(self, values: Tensor, damping: float) -> None:
        super().__init__()
        self.damping = damping
        for name in ("importance", "path"):
            self.register_buffer(name, torch.zeros_like(values, requires_grad=False))
        self.register_buffer("anchor", values.detach().clone())

    def penalty(self, values: Tensor) -> Tensor:
        """Sum of importance times squared distance from the end of the last domain."""
        return (self.importance * (values - self.anchor).square()).sum()

    def gradient(self, values: Tensor) -> Tensor:
        """Gradient of the penalty."""
        return 2 * self.importance * (values - self.anchor)

    def travel(self, gradient: Tensor, step: Tensor) -> None:
        """Add what a step contributed to the fall of the loss; a step that was left out contributes nothing."""
        self.path -= (gradient * step).nan_to_num(0.0, 0.0, 0.0)

    def close(self, values: Tensor) -> None:
        """End a domain: its share of the importance is what was gained on the way, per squared distance."""
        self.importance += self.path.clamp(min=0) / ((values - self.anchor).square() + self.damping)
        self.anchor.copy_(values)
        self.path.zero_()
