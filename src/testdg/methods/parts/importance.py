"""Importance: how much the source predictions depend on each parameter, and a penalty on moving what matters."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from testdg.methods.parts.restore import Anchor


class Importance(nn.Module):
    """The diagonal of the Fisher information of some parameters, and their source values."""

    fisher: Tensor

    def __init__(self, parameters: Sequence[nn.Parameter]) -> None:
        super().__init__()
        self.anchor = Anchor(parameters)
        self.register_buffer("fisher", torch.zeros_like(_flat(self.anchor.values())))

    def estimate(self, predict: Callable[[Tensor], Tensor], batches: Iterable[Tensor]) -> None:
        """Average the squared gradient of the cross-entropy to the predicted classes over batches of images."""
        total, count = torch.zeros_like(self.fisher), 0
        for images in batches:
            logits = predict(images).float()
            loss = F.cross_entropy(logits, logits.argmax(1))
            with torch.autocast(loss.device.type, enabled=False):
                total += _flat(torch.autograd.grad(loss, self.anchor.parameters_)).square()
            count += 1
        self.fisher.copy_(total / max(count, 1))

    def penalty(self) -> Tensor:
        """Squared distance to the source values, each weighted by its importance."""
        moved = _flat(self.anchor.parameters_) - _flat(self.anchor.values())
        return (self.fisher * moved.square()).sum()


def _flat(tensors: Iterable[Tensor]) -> Tensor:
    return torch.cat([tensor.flatten() for tensor in tensors])
