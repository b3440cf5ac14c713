"""One named stream: an adapter of its own, a copy of it that predicts meanwhile, and what happened."""

import math
import threading
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor

from testdg.core.guard import Guard
from testdg.files import writing
from testdg.models import VisionModel
from testdg.runs.predictor import Predictor
from testdg.runs.setup import put_back
from testdg.serve.factory import Factory
from testdg.serve.limits import Refused
from testdg.serve.timeline import Timeline

FROZEN = "the stream is frozen"
PUT_BACK = "the model was put back meanwhile"


@dataclass
class Counts:
    """What a stream has seen and done, from its beginning; `metrics` says what each number is."""

    pictures: int = 0
    changed_by_adaptation: float = 0.0
    learnt: int = 0
    not_learnt: int = 0
    dropped: int = 0
    steps: int = 0
    changes: int = 0
    failures: int = 0


class Fate(NamedTuple):
    """What came of learning from a batch."""

    change: bool
    learnt: bool
    reason: str


@dataclass
class Saved:
    """What of a stream is on disk."""

    time: float | None = None
    pictures: int = -1
    version: int = -1
    snapshot: float | None = None
    bytes: int = 0
    """Size of the saved state."""
    lost: str = ""
    """What a kill has cost, in words."""


@dataclass(eq=False)
class Stream:
    """An adapter that learns under `lock`, while predictions come from a copy of its model that is replaced whole."""

    name: str
    adapter: Any
    factory: Factory
    counts: Counts = field(default_factory=Counts)
    timeline: Timeline = field(default_factory=Timeline)
    saved: Saved = field(default_factory=Saved)
    frozen: bool = False
    era: int = 0
    """How often the model was put back: what was taken before is no longer learnt from."""
    tried: float = -math.inf
    """When it was last tried to save it, by the clock that only goes forward."""
    users: int = 0
    """Requests and learning that need it in memory."""
    version: int = 0
    """Changes with everything that a saved state depends on."""
    last: Fate | None = None
    """What came of the last batch."""
    changed: bool = False
    """A change was noticed that no answer has told yet."""

    def __post_init__(self) -> None:
        self.lock = threading.RLock()
        self.predictor = Predictor(self.adapter, self.factory.model, self.factory.names)
        self._front: VisionModel | None = None
        self.refresh()

    def refresh(self) -> None:
        """Let predictions come from the adapter as it is now; a reader of the old copy keeps it until it is done."""
        alone = self.factory.learns and self.adapter.beyond_weights() is None
        self._front = self.adapter.adapted_model() if alone else None
        self._shift: Tensor | None = self.adapter.stream_shift() if self.factory.learns else None
        self.version += 1

    def predict(self, images: Tensor) -> Tensor:
        """Logits of the adapted model; it waits for learning only where a method is more than one model."""
        if (front := self._front) is not None:
            logits = self.predictor.logits(front, images)
        else:
            with self.lock:
                logits = self.adapter.predict(images)
        # a frozen stream no longer knows which classes it shows
        return logits if (shift := self._shift) is None or self.frozen else logits + shift

    def learn(self, images: Sequence[Tensor], era: int) -> list[Fate]:
        """Learn from pictures that were taken in an era; a failure leaves the model as it was, and is told."""
        with self.lock:
            fates = [Fate(False, False, FROZEN if self.frozen else PUT_BACK)] * len(images)
            if self.frozen or era != self.era:
                return fates
            for places, batch in self.factory.canvas.batches(images):
                self.last = fate = self._learn(batch)
                for place in places:
                    fates[place] = fate
            self.refresh()
        return fates

    def _learn(self, batch: Tensor) -> Fate:
        try:
            self.adapter(batch)
        except Exception as error:
            return self._failed(len(batch), error)
        fate = Fate(*self.predictor.told())
        self.counts.steps += fate.learnt
        self.counts.learnt += len(batch) * fate.learnt
        self.counts.not_learnt += len(batch) * (not fate.learnt)
        if fate.change:
            self.counts.changes += 1
            self.changed = True
            self.timeline.mark("change", "the method noticed other conditions")
        if fate.reason:
            told = self.adapter.event().get("guard", "skip")
            self.timeline.mark("guard", f"{told}: {fate.reason}")
        return fate

    def _failed(self, pictures: int, error: Exception) -> Fate:
        """Note it; where the adapter says that it is torn, it begins anew."""
        self.counts.failures += 1
        self.counts.not_learnt += pictures
        reason = f"learning failed: {type(error).__name__}: {error}"[:300]
        self.timeline.mark("guard", reason)
        if self.adapter._torn:
            self.adapter.reset()
            self.timeline.mark("guard", "the weights were half written: back to the source")
        return Fate(False, False, reason)

    def take_change(self) -> bool:
        """Whether a change was noticed since somebody asked."""
        changed, self.changed = self.changed, False
        return changed

    # Actions, under the lock

    def reset(self) -> None:
        """Back to the source."""
        self.adapter.reset()
        self.era += 1
        self.refresh()

    def roll_back(self, folder: Path | None, reason: str) -> str:
        """Back to a snapshot, or without one to the last state that the guard found healthy; says to what."""
        if folder is not None:
            put_back(self.adapter, folder)
            told = f"snapshot {folder.name}"
        elif isinstance(self.adapter, Guard) and self.adapter.snapshots:
            self.adapter.roll_back(reason)
            told = "the last healthy state"
        else:
            raise Refused(f"{self.name} has no snapshot and no healthy state to go back to: take a snapshot first", 409)
        self.era += 1
        self.refresh()
        return told

    def export(self, folder: Path) -> None:
        """Write the adapted model as an ordinary one."""
        if (reason := self.adapter.beyond_weights()) is not None:
            raise Refused(f"{self.adapter.name} cannot be one model, as {reason}: take a snapshot", 409)
        with writing(folder):
            self.adapter.export(folder)

    # State

    def note(self) -> dict[str, Any]:
        """What is saved beside the adapter."""
        about = {"counts": asdict(self.counts), "marks": self.timeline.values(), "snapshot": self.saved.snapshot}
        return {**about, "frozen": self.frozen, "time": time.time()}

    def load_note(self, note: dict[str, Any]) -> None:
        """Take back what `note` gave."""
        self.counts = Counts(**note["counts"])
        self.timeline.load(note["marks"])
        self.frozen = bool(note["frozen"])
        self.saved = Saved(note["time"], self.counts.pictures, self.version, note["snapshot"])

    @property
    def dirty(self) -> bool:
        """Whether there is something to save."""
        return (self.version, self.counts.pictures) != (self.saved.version, self.saved.pictures)

    def state(self) -> dict[str, Any]:
        """Everything about it, ready for JSON."""
        guard = dict(self.adapter.counts) if isinstance(self.adapter, Guard) else None
        return {
            "stream": self.name,
            **asdict(self.counts),
            "frozen": self.frozen,
            "rate": round(self.timeline.rate(), 2),
            "guard": guard,
            "pause": self.adapter.pause if isinstance(self.adapter, Guard) else 0,
            "state_bytes": self.saved.bytes,
            "saved": self.saved.time,
            "snapshot": self.saved.snapshot,
            "lost": self.saved.lost,
        }
