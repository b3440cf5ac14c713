"""Jumps of a number from batch to batch that are more than its noise."""

import math
from collections.abc import Sequence

from testdg.methods.parts.plain_state import PlainState


class JumpDetector(PlainState):
    """Say that the domain changed when the confidence jumps.

    A batch is compared with each of the `history` before it. With `significance` above zero, the mean of the `recent`
    batches is compared with the mean of the `history` before them, and the gap must also be that many standard errors
    wide, so that a small batch, whose confidence is noisy, does not pass for a new domain.
    """

    plain = ("past",)

    def __init__(self, threshold: float, history: int = 1, recent: int = 1, significance: float = 0.0) -> None:
        super().__init__()
        self.threshold, self.history, self.recent, self.significance = threshold, history, recent, significance
        self.past: list[float] = []

    def update(self, confidence: float) -> bool:
        """Take the mean confidence of a batch; True where a new domain begins."""
        past = [*self.past, confidence][-self.history - self.recent :]
        jumps = self._significant if self.significance else self._far
        changed = jumps(past[: -self.recent], past[-self.recent :])
        self.past = past[-self.recent :] if changed else past
        return changed

    def _far(self, old: Sequence[float], new: Sequence[float]) -> bool:
        return any(abs(_mean(new) - value) > self.threshold for value in old)

    def _significant(self, old: Sequence[float], new: Sequence[float]) -> bool:
        if len(old) < min(3, self.history):  # no spread to speak of yet
            return False
        squares = sum((value - _mean(part)) ** 2 for part in (old, new) for value in part)
        variance = squares / max(1, len(old) + len(new) - 2)
        error = math.sqrt(variance * (1 / len(old) + 1 / len(new)))
        return abs(_mean(old) - _mean(new)) > max(self.threshold, self.significance * error)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
