"""What a guard did, and why: counted, kept, and told."""

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

Action = Literal["skip", "roll back", "fall back"]


@dataclass(frozen=True)
class Decision:
    """What the guard did at a batch, and why."""

    batch: int
    action: Action
    reason: str


class Decisions:
    """How often a guard did what, and the last hundred decisions."""

    def __init__(self, on_decision: Callable[[Decision], None] | None) -> None:
        self.on_decision = on_decision
        self.last: deque[Decision] = deque(maxlen=100)
        self.forget()

    def forget(self) -> None:
        """Begin anew."""
        self.counts: dict[Action, int] = {"skip": 0, "roll back": 0, "fall back": 0}
        self.last.clear()

    def add(self, batch: int, action: Action, reason: str) -> dict[str, Any]:
        """Count and tell a decision; what an event says about it comes back."""
        decision = Decision(batch, action, reason)
        self.counts[action] += 1
        self.last.append(decision)
        if self.on_decision is not None:
            self.on_decision(decision)
        return {"guard": action, "guard_reason": reason}

    def values(self) -> dict[str, Any]:
        """Everything, ready for JSON."""
        return {"counts": self.counts, "decisions": [asdict(decision) for decision in self.last]}

    def load(self, values: Mapping[str, Any]) -> None:
        """Put back what `values` gave."""
        self.forget()
        self.counts.update(values["counts"])
        self.last.extend(Decision(**decision) for decision in values["decisions"])
