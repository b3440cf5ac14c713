"""Domain change detection (section 3.1 of the paper)."""

from __future__ import annotations

import math
from typing import Any

from torch import nn


class ChangeDetector(nn.Module):
    """Say that the domain changed when the confidence of the predictions jumps.

    The paper compares a batch with the one before it: `history` 1, `recent` 1, `significance` 0. The released code
    looks two batches back and takes the larger gap. With `significance` above zero, the mean of the `recent` batches
    is compared with the mean of the `history` before them, and the gap must also be that many standard errors wide,
    so that a small batch, whose confidence is noisy, does not pass for a new domain.
    """

    def __init__(self, threshold: float, history: int = 1, recent: int = 1, significance: float = 0.0) -> None:
        super().__init__()
        self.threshold, self.history, self.recent, self.significance = threshold, history, recent, significance
        self.past: list[float] = []
        self.count = 0
        """Batches since the domain began."""

    def update(self, confidence: float) -> bool:
        """Take the mean confidence of a batch; True where a new domain begins."""
        past = [*self.past, confidence][-self.history - self.recent :]
        old, new = past[: -self.recent], past[-self.recent :]
        changed = self._significant(old, new) if self.significance else self._far(old, new)
        self.past = new if changed else past
        self.count = 1 if changed else self.count + 1
        return changed

    def _far(self, old: list[float], new: list[float]) -> bool:
        return any(abs(_mean(new) - value) > self.threshold for value in old)

    def _significant(self, old: list[float], new: list[float]) -> bool:
        if len(old) < min(3, self.history):  # no spread to speak of yet
            return False
        squares = sum((value - _mean(part)) ** 2 for part in (old, new) for value in part)
        variance = squares / max(1, len(old) + len(new) - 2)
        error = math.sqrt(variance * (1 / len(old) + 1 / len(new)))
        return abs(_mean(old) - _mean(new)) > max(self.threshold, self.significance * error)

    def get_extra_state(self) -> dict[str, Any]:
        """Give what the next decision depends on."""
        return {"past": self.past, "count": self.count}

    def set_extra_state(self, state: dict[str, Any]) -> None:
        """Put it back."""
        self.past, self.count = list(state["past"]), int(state["count"])


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)
