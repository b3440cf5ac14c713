"""What a stream of predictions amounts to, in bounded memory: means, counts, and a curve over time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

_MOST_BINS = 256
_MOST_CHANGES = 1000


@dataclass
class Bin:
    """Sums over some pictures that follow each other."""

    count: int = 0
    confidence: float = 0.0
    source_confidence: float = 0.0
    differs: float = 0.0

    def add(self, other: Bin) -> None:
        """Add the sums of another one."""
        self.count += other.count
        self.confidence += other.confidence
        self.source_confidence += other.source_confidence
        self.differs += other.differs

    def mean(self, name: str) -> float:
        """The mean of one of the sums; 0 where there are no pictures."""
        return float(getattr(self, name)) / self.count if self.count else 0.0


@dataclass
class Tally:
    """Counts rows of predictions as they are written."""

    all: Bin = field(default_factory=Bin)
    bins: list[Bin] = field(default_factory=list)
    width: int = 1
    """Pictures in a bin; it doubles when there are too many bins."""
    changes: int = 0
    changed_at: list[int] = field(default_factory=list)
    """Where changes were noticed, as places among the predictions: the first thousand."""
    learnt: int = 0
    skipped: int = 0
    classes: Counter[str] = field(default_factory=Counter)
    source_classes: Counter[str] = field(default_factory=Counter)

    def add(self, row: Mapping[str, Any]) -> None:
        """Count a row of `predictions.csv`."""
        if int(row["change"]):
            self.changes += 1
            self.changed_at += [self.all.count] if len(self.changed_at) < _MOST_CHANGES else []
        one = Bin(1, *(float(row[key]) for key in ("confidence", "source_confidence", "differs")))
        self.all.add(one)
        self._into_bin(one)
        self.learnt += int(row["learnt"])
        self.classes[str(row["class"])] += 1
        self.source_classes[str(row["source_class"])] += 1

    def _into_bin(self, one: Bin) -> None:
        if not self.bins or self.bins[-1].count >= self.width:
            if len(self.bins) == _MOST_BINS:
                for left, right in zip(self.bins[::2], self.bins[1::2], strict=True):
                    left.add(right)
                self.bins, self.width = self.bins[::2], 2 * self.width
            self.bins.append(Bin())
        self.bins[-1].add(one)

    def summary(self) -> dict[str, Any]:
        """Everything as plain values."""
        return {
            "predictions": self.all.count,
            "skipped": self.skipped,
            "confidence": round(self.all.mean("confidence"), 4),
            "source_confidence": round(self.all.mean("source_confidence"), 4),
            "changed_by_adaptation": round(self.all.mean("differs"), 4),
            "changes": self.changes,
            "learnt": self.learnt,
            "classes": dict(self.classes.most_common(20)),
            "source_classes": dict(self.source_classes.most_common(20)),
        }
