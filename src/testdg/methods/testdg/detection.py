"""Domain change detection (section 3.1 of the paper)."""

from __future__ import annotations

from typing import Any

from torch import nn


class ChangeDetector(nn.Module):
    """Say that the domain changed when the confidence of the predictions jumps.

    A batch is compared with the last `history` batches of its domain. With `smoothing` above zero (for batches of
    one image, whose confidence is noisy), a moving average is compared with the mean since the last change, as soon
    as there are as many values as the average looks back on.
    """

    def __init__(self, threshold: float, history: int = 1, smoothing: float = 0.0, significance: float = 0.0, recent: int = 3) -> None:
        super().__init__()
        self.threshold, self.history, self.smoothing = threshold, history, smoothing
        self.significance = significance
        self.recent = recent
        self.past: list[float] = []
        self.average = 0.0
        self.total = 0.0
        self.count = 0

    def update(self, confidence: float) -> bool:
        """Take the mean confidence of a batch; True where a new domain begins."""
        if self.significance:
            return self._significant(confidence)
        if self.smoothing:
            keep = min(self.smoothing, self.count / (self.count + 1))  # the first values weigh the same
            self.average = keep * self.average + (1 - keep) * confidence
        value = self.average if self.smoothing else confidence
        changed = any(abs(value - reference) > self.threshold for reference in self._references())
        if changed:
            self.past, self.total, self.count, self.average = [], 0.0, 0, confidence
        self.past = [*self.past, confidence][-self.history :]
        self.total, self.count = self.total + confidence, self.count + 1
        return changed

    def _significant(self, confidence: float) -> bool:
        past = [*self.past, confidence][-self.history - self.recent :]
        old, new = past[: -self.recent], past[-self.recent :]
        changed = False
        if len(old) >= 3:
            means = [sum(part) / len(part) for part in (old, new)]
            squares = sum((v - m) ** 2 for part, m in zip((old, new), means, strict=True) for v in part)
            spread = (squares / max(1, len(past) - 2) * (1 / len(old) + 1 / len(new))) ** 0.5
            gap = abs(means[0] - means[1])
            changed = gap > self.threshold and gap > self.significance * spread
        self.past = new if changed else past
        self.count = 1 if changed else self.count + 1
        return changed

    def _references(self) -> list[float]:
        if not self.smoothing:
            return self.past
        return [self.total / self.count] if self.count * (1 - self.smoothing) >= 1 else []

    def get_extra_state(self) -> dict[str, Any]:
        """Give what the next decision depends on."""
        return {"past": self.past, "average": self.average, "total": self.total, "count": self.count}

    def set_extra_state(self, state: dict[str, Any]) -> None:
        """Put it back."""
        self.past, self.average, self.total, self.count = (state[k] for k in ("past", "average", "total", "count"))
