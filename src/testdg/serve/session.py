"""The session that every stream starts from, and a named stream: its adapter, counts and timeline."""

import math
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

from pydantic import BaseModel, Field
from torch import Tensor, nn

from testdg.core.online import OnlineModel
from testdg.files import writing
from testdg.models import VisionModel
from testdg.runs.session import PictureOptions, Session, open_pictures
from testdg.serve.limits import Refused
from testdg.serve.timeline import Timeline

FROZEN = "the stream is frozen"
PUT_BACK = "the model was replaced in the meantime"
Learning = Literal["queued", "done", "dropped", "frozen", "off"]
"""What happens to the pictures of a request."""


class Counts(BaseModel):
    """Totals of a stream since its first picture."""

    pictures: int = Field(default=0, description="Pictures that were predicted.")
    changed_by_adaptation: float = Field(
        default=0.0, description="Predictions that adaptation changed; for segmentation, shares of pixels."
    )
    learnt: int = Field(default=0, description="Pictures that were learnt from.")
    not_learnt: int = Field(default=0, description="Pictures that the guard excluded from learning.")
    dropped: int = Field(default=0, description="Pictures that were not learnt from because the queue was full.")
    steps: int = Field(default=0, description="Batches that were learnt from.")
    changes: int = Field(default=0, description="Detected changes of conditions.")
    failures: int = Field(default=0, description="Batches for which learning failed.")


class LearningOutcome(NamedTuple):
    """Result of learning from a batch."""

    change: bool
    learnt: bool
    reason: str


@dataclass
class Saved:
    """The state on disk."""

    time: float | None = None
    pictures: int = -1
    version: int = -1
    snapshot: float | None = None
    bytes: int = 0
    lost: str = ""
    """What was lost because the last server was killed or a state was damaged."""


def open_source(
    model: str | Path | nn.Module, options: PictureOptions, settings: Mapping[str, Any] | None = None
) -> Session:
    """Open the session that is copied for every stream of a server: one source model, prepared once."""
    session = open_pictures(model, options, settings)
    session.warm_up()
    assert session.untouched is not session.model  # copied now, before other threads predict
    return session


@dataclass(eq=False)
class StreamSession:
    """An online model that learns under `lock`.

    Predictions come from a copy of the adapted model, so that they do not wait for learning. The copy is never
    changed: `refresh` replaces it by a new one, and a prediction in progress continues with the old one.
    """

    name: str
    session: Session
    counts: Counts = field(default_factory=Counts)
    timeline: Timeline = field(default_factory=Timeline)
    saved: Saved = field(default_factory=Saved)
    frozen: bool = False
    era: int = 0
    """How many times the model was replaced. Pictures that were queued in an earlier era are not learnt from."""
    save_tried: float = -math.inf
    """Monotonic time of the last attempt to save."""
    users: int = 0
    """Requests and queues that need the session in memory."""
    version: int = 0
    """Incremented whenever something changes that a saved state contains."""
    last: LearningOutcome | None = None
    """Outcome of the last batch."""
    changed: bool = False
    """Whether a change was detected that no answer has reported yet."""

    def __post_init__(self) -> None:
        self.lock = threading.RLock()
        self.refresh()

    @property
    def online(self) -> OnlineModel:
        return self.session.online

    def refresh(self) -> None:
        """Use the present weights of the adapter for predictions."""
        adapter = self.online.adapter
        copied = adapter.learns and adapter.why_not_exportable() is None
        self._front: VisionModel | None = adapter.adapted_model() if copied else None
        self._shift: Tensor | None = adapter.stream_shift() if adapter.learns else None
        self.version += 1

    def predict(self, images: Tensor) -> Tensor:
        """Logits of the adapted model. Waits for learning only if the method cannot be copied as one model."""
        if (front := self._front) is not None:
            logits = self.session.predict_by(front, images)
        else:
            with self.lock:
                logits = self.online.predict(images)
        # the shift follows the class frequencies of the stream, which are not estimated while it is frozen
        return logits if (shift := self._shift) is None or self.frozen else logits + shift

    def learn(self, images: Sequence[Tensor], era: int) -> list[LearningOutcome]:
        """Learn from pictures, unless the model was replaced since `era`. A failed step leaves the model unchanged."""
        with self.lock:
            outcomes = [LearningOutcome(False, False, FROZEN if self.frozen else PUT_BACK)] * len(images)
            if self.frozen or era != self.era:
                return outcomes
            for places, batch in self.session.canvas.batches(images):
                self.last = outcome = self._learn(batch)
                for place in places:
                    outcomes[place] = outcome
            self.refresh()
        return outcomes

    def _learn(self, batch: Tensor) -> LearningOutcome:
        try:
            event = self.session.step(batch)
        except Exception as error:
            return self._failure(len(batch), error)
        outcome = LearningOutcome(event.change, event.learnt, event.reason)
        self.counts.steps += outcome.learnt
        self.counts.learnt += len(batch) * outcome.learnt
        self.counts.not_learnt += len(batch) * (not outcome.learnt)
        if outcome.change:
            self.counts.changes += 1
            self.changed = True
            self.timeline.mark("change", "the method detected new conditions")
        if outcome.reason:
            self.timeline.mark("guard", f"{event.guard.get('guard', 'skip')}: {outcome.reason}")
        return outcome

    def _failure(self, pictures: int, error: Exception) -> LearningOutcome:
        self.counts.failures += 1
        self.counts.not_learnt += pictures
        reason = f"learning failed: {type(error).__name__}: {error}"[:300]
        self.timeline.mark("guard", reason)
        if self.online.adapter._torn:
            self.online.reset()
            self.timeline.mark("guard", "the weights were partly written: reset to the source")
        return LearningOutcome(False, False, reason)

    # Actions, under the lock

    def reset(self) -> None:
        self.online.reset()
        self.era += 1
        self.refresh()

    def roll_back(self, snapshot: Path | None, reason: str) -> str:
        """Go back to a snapshot, or for None to the last state that the guard found healthy; returns its name."""
        guard = self.online.guard
        if snapshot is not None:
            self.session.restore(snapshot)
        elif guard is not None and guard.snapshots:
            guard.roll_back(reason)
        else:
            message = f"{self.name} has no snapshot and no healthy state to go back to: take a snapshot first"
            raise Refused(message, "nothing-to-roll-back", 409)
        self.era += 1
        self.refresh()
        return "the last healthy state" if snapshot is None else f"snapshot {snapshot.name}"

    def export(self, folder: Path) -> None:
        adapter = self.online.adapter
        if (reason := adapter.why_not_exportable()) is not None:
            raise Refused(f"{adapter.name} cannot be exported: {reason}; take a snapshot", "not-exportable", 409)
        with writing(folder):
            adapter.export(folder)

    # State

    def note(self) -> dict[str, Any]:
        """Values to save with the adapter."""
        about = {"counts": self.counts.model_dump(), "marks": self.timeline.values(), "snapshot": self.saved.snapshot}
        return {**about, "frozen": self.frozen, "time": time.time()}

    def load_note(self, note: dict[str, Any]) -> None:
        self.counts = Counts(**note["counts"])
        self.timeline.load(note["marks"])
        self.frozen = bool(note["frozen"])
        self.saved = Saved(note["time"], self.counts.pictures, self.version, note["snapshot"])

    @property
    def dirty(self) -> bool:
        """Whether the session differs from its saved state."""
        return (self.version, self.counts.pictures) != (self.saved.version, self.saved.pictures)
