"""What the guard decides, counts and stores; values only."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from testdg.core.guard.health import State

Action = Literal["skip", "roll back", "fall back"]


@dataclass(frozen=True)
class Decision:
    """What the guard did from a batch on, and why. A row of batches that are skipped for one reason is one decision."""

    batch: int
    action: Action
    reason: str
    """A sentence for people; it may be reworded."""
    code: str = ""
    """The stable name of the reason, for programs."""


class Snapshot(NamedTuple):
    """A state that a check found healthy."""

    state: State
    image: int
    """Images of the stream before it."""


OnDecision = Callable[[Decision], None] | None


@dataclass
class Counters:
    """The plain numbers that the next decision depends on; they are saved as they are."""

    batch: int = 0
    image: int = 0
    """Images of the stream so far."""
    pause: int = 0
    """Images left that will not be learnt from."""
    troubles: int = 0
    """Unhealthy checks without `patience` healthy ones between them."""
    actions: dict[Action, int] = field(default_factory=lambda: {"skip": 0, "roll back": 0, "fall back": 0})
