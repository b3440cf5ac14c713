"""Domain change detection (section 3.1 of the paper)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

Values = Sequence[float]


class ChangeDetector(nn.Module):
    """Say that the domain changed when what it watches jumps: the confidence of the predictions, or several numbers.

    The paper compares a batch with the one before it: `history` 1, `recent` 1, `significance` 0. The released code
    looks two batches back and takes the larger gap. With `significance` above zero, the mean of the `recent` batches
    is compared with the mean of the `history` before them, and the gap must also be that many standard errors wide,
    so that a small batch, whose numbers are noisy, does not pass for a new domain. Of several numbers, one that
    jumps is enough.
    """

    def __init__(self, threshold: float, history: int = 1, recent: int = 1, significance: float = 0.0) -> None:
        super().__init__()
        self.threshold, self.history, self.recent, self.significance = threshold, history, recent, significance
        self.past: list[Values] = []
        self.count = 0
        """Batches since the domain began."""

    def update(self, *signal: float) -> bool:
        """Take the numbers of a batch; True where a new domain begins."""
        past = [*self.past, signal][-self.history - self.recent :]
        jumps = self._significant if self.significance else self._far
        changed = any(jumps(one[: -self.recent], one[-self.recent :]) for one in zip(*past, strict=True))
        self.past = past[-self.recent :] if changed else past
        self.count = 1 if changed else self.count + 1
        return changed

    def _far(self, old: Values, new: Values) -> bool:
        return any(abs(_mean(new) - value) > self.threshold for value in old)

    def _significant(self, old: Values, new: Values) -> bool:
        if len(old) < min(3, self.history):  # no spread to speak of yet
            return False
        squares = sum((value - _mean(part)) ** 2 for part in (old, new) for value in part)
        variance = squares / max(1, len(old) + len(new) - 2)
        error = math.sqrt(variance * (1 / len(old) + 1 / len(new)))
        return abs(_mean(old) - _mean(new)) > max(self.threshold, self.significance * error)

    def get_extra_state(self) -> dict[str, Any]:
        """Give what the next decision depends on."""
        return {"past": [list(values) for values in self.past], "count": self.count}

    def set_extra_state(self, state: dict[str, Any]) -> None:
        """Put it back."""
        self.past, self.count = [tuple(values) for values in state["past"]], int(state["count"])


def appearance(images: Tensor) -> Tensor:
    """How images look, whatever they show, as a mean over the batch: four numbers of each channel.

    Brightness, and the logarithms of contrast, of the slope between neighbouring pixels (noise raises it, blur lowers
    it) and of its change from one pixel to the next (which tells blocks and noise from edges).
    """
    with torch.autocast(images.device.type, enabled=False):
        images = images.float()
        across, down = images.diff(dim=-1), images.diff(dim=-2)
        amounts = (
            images.flatten(2).std(2),
            _size(across) + _size(down),
            _size(across.diff(dim=-1)),
        )
        brightness = images.mean((2, 3))
        return torch.cat([brightness, *(amount.clamp(min=1e-5).log() for amount in amounts)], dim=1).mean(0)


def _size(differences: Tensor) -> Tensor:
    return differences.abs().mean((2, 3))


def _mean(values: Values) -> float:
    return sum(values) / len(values)
