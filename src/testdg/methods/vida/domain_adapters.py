"""The two adapters of ViDA, low-rank and high-rank, and how they share the work."""

import torch
from torch import Generator, Tensor

from testdg.methods.parts.bottleneck import Bottleneck
from testdg.models import VisionModel


class DomainAdapters(Bottleneck):
    """A low-rank and a high-rank branch beside each layer: one bottleneck whose ranks have two scales.

    The down-projections start as normal numbers with standard deviation 1 / rank^2.
    """

    def __init__(self, model: VisionModel, low: int, high: int, generator: Generator) -> None:
        super().__init__(model, low + high, generator)
        self.ranks = (low, high)
        spread = self._per_rank(torch.tensor([low**-2.0, high**-2.0], device=model.device))
        with torch.no_grad():
            for down in self.down.values():
                down.normal_(generator=generator).mul_(spread[:, None])

    def merged(self, model: VisionModel, scales: Tensor | None = None) -> dict[str, Tensor]:
        """Weights of the model with both branches added; `scales` are one number for each branch."""
        return super().merged(model, None if scales is None else self._per_rank(scales))

    def _per_rank(self, values: Tensor) -> Tensor:
        return torch.cat([value.expand(rank) for value, rank in zip(values, self.ranks, strict=True)])


def uncertainty(logits: Tensor) -> Tensor:
    """A tenth of the variance of logits (views, N, C, ...) over the views, averaged over everything else."""
    return 0.1 * logits.float().var(0).mean()


def allotment(uncertainty: Tensor, threshold: float, as_released: bool = False) -> Tensor:
    """Scales of the low-rank and the high-rank branch: the high one grows where the teacher is unsure.

    `as_released` leaves the high one at 1, and the low one without bounds. What is not finite changes nothing.
    """
    known = torch.where(uncertainty.isfinite(), uncertainty, 0.0)
    toward_high = torch.where(known >= threshold, known, -known)
    if as_released:
        return torch.stack([1 - toward_high, torch.ones_like(toward_high)])
    return torch.stack([1 - toward_high, 1 + toward_high]).clamp(0, 2)
