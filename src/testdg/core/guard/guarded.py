"""The guard: what is worth learning from, is the model still itself, and what to do where it is not.

Three answers, in this order: predict without learning, go back to the last healthy state, go back to the source and
learn nothing for a while. It needs no labels, and nothing but what every adapter can do.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from testdg.bounds import require_range
from testdg.core.adapter import Adapter
from testdg.core.guard import health
from testdg.core.guard.health import Movement, Probe, counting, learn_some
from testdg.core.guard.inputs import REASONS, Inputs
from testdg.core.guard.mix import MIXED, Mix, spread
from testdg.core.guard.state import PREFIX, Action, Decision, OnDecision, copied, own_tensors, own_values, put_back
from testdg.core.weights import frozen_copy
from testdg.errors import UserError

PAUSE = 1000
"""Images without learning after the first fall; twice as many after each further one."""


class Guard:
    """An adapter that cannot be ruined. Used as the adapter itself; see `guard`."""

    def __init__(
        self, adapter: Adapter, probe: Tensor | None, patience: int, snapshots: int, on_decision: OnDecision
    ) -> None:
        self.adapter, self.patience = adapter, patience
        self._on_decision = on_decision
        self.decisions: deque[Decision] = deque(maxlen=100)
        device = adapter.model.device
        self.inputs = Inputs(adapter.model.channels).to(device)
        self.mix = Mix(adapter.model.classes if adapter.model.task == "classification" else 1)
        self.probe = Probe(None if probe is None else probe.to(device), adapter.model.task)
        self.snapshots: deque[tuple[dict[str, Tensor], dict[str, Any]]] = deque(maxlen=snapshots)  # healthy states
        self._start()

    def _start(self) -> None:
        self.counts: dict[Action, int] = {"skip": 0, "roll back": 0, "fall back": 0}  # how often it did what
        self.decisions.clear()
        self.batch = self.seen = self.troubles = self.healthy = 0
        self.pause = 0  # images that will not be learnt from
        self.passes = 0.0  # of an image through the model, as it is learnt from
        self.counted = 0  # batches that this is a mean of
        self.moved = 0.0  # how far weights have moved since the last look
        self.trust = health.TRUST  # how far weights may move until the next look, in parts of what is far
        self.mix.forget()
        self._event: dict[str, str | int] = {}  # of the last batch
        self._stepped = False  # whether the adapter has seen the last batch
        self.snapshots.clear()
        self.recent: Tensor | None = None  # the last images that were worth a look
        self.inputs.forget()

    def __getattr__(self, name: str) -> Any:
        """Everything else is the adapter's."""
        if name == "adapter":  # not made yet
            raise AttributeError(name)
        if name in ("to", "cuda", "cpu"):  # would give the adapter without its guard
            raise UserError("a guard stays where its adapter is: bring the model to its device before adapt()")
        return getattr(self.adapter, name)

    # What a user calls

    def __call__(self, images: Tensor) -> Tensor:
        """Predict a batch, and learn from it if it is worth it and harms nothing."""
        self.adapter.require_source()
        images = self.adapter.accept(images)
        self._event, self._stepped = {}, False
        if not self.snapshots:
            self._begin(images)
        if self.pause > 0:
            logits = self._predict(images)
            self.pause -= len(images)
            self._event = {"guard_pause": max(0, self.pause)}
        else:
            logits = self._answer(images)
        self.batch += 1
        return logits

    def warm_up(self, batches: Iterable[Tensor | tuple[Tensor, Tensor]]) -> None:
        """Let the adapter learn from source images; the first of them are the probe, if none was given."""
        kept: list[Tensor] = []
        self.adapter.warm_up(self._keeping(batches, kept))
        if self.probe.images is None and kept:
            self.probe = Probe(torch.cat(kept).to(self.adapter.model.device), self.adapter.model.task)

    def _keeping(self, batches: Iterable[Any], kept: list[Tensor]) -> Iterable[Any]:
        for batch in batches:
            images = batch if isinstance(batch, Tensor) else batch[0]
            if sum(map(len, kept)) < self.probe.wanted and (not kept or kept[0].shape[1:] == images.shape[1:]):
                kept.append(images)
            yield batch

    def predict(self, images: Tensor) -> Tensor:
        """Predict a batch and change nothing."""
        return self.adapter.predict(images)

    def reset(self) -> None:
        """Back to the source, and learning again."""
        self.adapter.reset()
        self._start()

    def roll_back(self, reason: str) -> None:
        """Go back to the last healthy state because somebody wants it."""
        if not self.snapshots:
            raise UserError("there is no healthy state to go back to yet: it is kept before the first batch")
        self._go_back(reason)
        self._settle()

    def save(self, folder: str | Path, note: Mapping[str, Any] | None = None) -> None:
        """Write the adapter and the guard: everything that the next batch depends on."""
        whole: Any = self
        Adapter.save(whole, folder, note)

    # What is known of the last batch

    @property
    def guard(self) -> Guard:
        """The guard itself."""
        return self

    @property
    def diagnostics(self) -> dict[str, Tensor | float | bool | str]:
        """The event of the last batch, and the numbers of the adapter if it has seen the batch."""
        return {**(self.adapter.diagnostics if self._stepped else {}), **self._event}

    @property
    def learnt(self) -> bool:
        """Whether the adapter has learnt from the last batch, and the step was not undone."""
        return self._stepped and not self._event

    @property
    def decision(self) -> str:
        """Why the last batch was skipped or its step undone; empty where neither happened."""
        if "guard_pause" in self._event:
            return f"learning pauses for {self._event['guard_pause']} more images"
        return str(self._event.get("guard_reason", ""))

    @property
    def guard_counts(self) -> dict[str, int]:
        """How often the guard did what, with underscores in the names."""
        return {action.replace(" ", "_"): count for action, count in self.counts.items()}

    def event(self) -> dict[str, str | int]:
        """The decision about the last batch, or the images left in a pause; empty where the batch was learnt from."""
        return dict(self._event)

    # The three answers

    def _count(self, logits: Tensor) -> None:
        if self.mix.classes > 1:
            self.mix.add(logits.argmax(1).tolist())

    def _begin(self, images: Tensor) -> None:
        """Note what is known before the first batch."""
        logits = self.adapter.predict(images)
        self._know_source()
        self.probe.begin(self.adapter.predict, self._source)
        self._count(logits)
        self.snapshots.append(copied(self.adapter))

    def _know_source(self) -> None:
        """Keep the model that `reset` gives, which is what `warm_up` has made of it, and watch its weights."""
        state = copied(self.adapter)
        self.adapter.reset()
        self.source = frozen_copy(self.adapter.model)
        self.movement = Movement(self.adapter.trainable())
        self.adapter.load_state(*state)
        self._mark()

    @torch.no_grad()
    def _source(self, images: Tensor) -> Tensor:
        with self.adapter.autocast():
            return self.source(self.source.prepare(images)).logits  # type: ignore[no-any-return]

    def _predict(self, images: Tensor) -> Tensor:
        """Predict without learning."""
        logits: Tensor = self.adapter.predict(images)
        self._count(logits)
        return logits

    def _answer(self, images: Tensor) -> Tensor:
        recent = self.recent
        look = self.inputs.look(images)
        try:
            require_range(look.low, look.high)  # before anything is decided
            return self._decide_on(images.clamp(0, 1) if look.low < 0 or look.high > 1 else images, look.flags)
        except BaseException:
            self.inputs.forget_last()  # a batch that was refused was not seen
            self.recent = recent
            raise

    def _decide_on(self, images: Tensor, flags: Sequence[Sequence[bool]]) -> Tensor:
        """Skip a batch, learn from it, or undo what was learnt."""
        worth = [not any(row) for row in flags]
        if 2 * sum(worth) < len(worth) or not any(worth):
            against = [sum(column) for column in zip(*flags, strict=True)]
            return self._skip(images, REASONS[against.index(max(against))])
        self._note(images)
        if not self.mix.known:
            return self._skip(images, "too few predictions so far to know the mix of classes")
        if self.mix.look() and (answer := self._one_sided(images)) is not None:
            return answer
        logits = self._learn(images, worth)
        self.seen += max(len(images), health.LIKE_ONE.get(images.device.type, 1))
        return logits if (trouble := self._trouble(logits)) is None else self._undo(images, trouble)

    def _one_sided(self, images: Tensor) -> Tensor | None:
        """Predictions of one class: is it the model, the stream, or a domain that is hard to see through?

        What the model has learnt is looked at first. If it is healthy, and the method handles classes in bunches or the
        source sees a mix in the same images, the stream is worth learning from, and None is the answer.
        """
        assert self.recent is not None
        if self.seen and self.probe.ready and (trouble := self._look()) is not None:
            return self._undo(images, trouble)
        if self.probe.ready and self.adapter.handles_bunches:
            return None
        if self.probe.ready and spread(self._source(self.recent).argmax(1).tolist(), self.mix.classes) >= MIXED:
            return None
        return self._skip(images, str(self.mix))

    def _learn(self, images: Tensor, worth: Sequence[bool]) -> Tensor:
        """Learn from the images that are worth it, and predict the others."""
        self._stepped = True
        if self.counted >= health.COUNTED:
            return learn_some(self.adapter, images, worth, self.probe)
        with counting(self.adapter) as passed:
            logits = learn_some(self.adapter, images, worth, self.probe)
        passes = sum(passed) / len(images) + (health.BACKWARD if self.movement.before else 0)
        self.passes = (self.passes * self.counted + passes) / (self.counted + 1)
        self.counted += 1
        return logits

    def _mark(self) -> None:
        """Measure how far the weights move from here."""
        self.movement.mark()
        self.moved = 0.0

    def _note(self, images: Tensor) -> None:
        """Keep the last images, for a question to the source."""
        kept = self.recent if self.recent is not None and self.recent.shape[1:] == images.shape[1:] else images[:0]
        self.recent = torch.cat([kept, images])[-health.RECENT[self.adapter.model.task] :]

    def _skip(self, images: Tensor, reason: str) -> Tensor:
        logits = self._predict(images)
        self._decide("skip", reason)
        return logits

    def _trouble(self, logits: Tensor) -> str | None:
        """What is wrong with the model after a step; None where nothing is known to be."""
        step = self.movement.after(logits)
        if not step.finite:
            return "predictions or weights are not finite"
        self.mix.add(step.classes)
        jump, self.moved = step.moved - self.moved, step.moved
        if jump > health.JUMP:
            return "the weights jumped further in one step than any step should take them: is the rate too high?"
        if not self.probe.ready or not (step.moved > self.trust or self.probe.due(self.seen, self.passes)):
            return None
        return self._look()

    def _look(self) -> str | None:
        """Pass the probe; a healthy model is kept."""
        assert self.recent is not None
        self.seen = 0
        self._mark()
        agreement = self.probe.agreement(self.adapter.predict, self.healthy % 2)
        if self.probe.forgotten(agreement, self._source, self.recent):
            whose = "source images" if self.probe.origin == "source" else "the first images of the stream"
            return f"only {agreement:.0%} of {whose} are predicted as before"
        self.healthy += 1
        self.trust = min(1.0, health.MORE_TRUST * self.trust)
        self.troubles = 0 if self.healthy >= self.patience else self.troubles
        self.snapshots.append(copied(self.adapter))
        return None

    def _undo(self, images: Tensor, reason: str) -> Tensor:
        """Go back to the last healthy state, from which trouble came; after several times, to the source."""
        self.troubles, self.healthy, self.trust = self.troubles + 1, 0, health.TRUST
        if self.troubles >= self.patience:
            self.pause = PAUSE * 2 ** self.counts["fall back"]
            self.adapter.reset()
            self.snapshots.clear()
            self.snapshots.append(copied(self.adapter))
            told = f"{reason}, again: the source predicts, and nothing is learnt from the next {self.pause} images"
            self._decide("fall back", told)
        else:
            self._go_back(reason)
        self._settle()
        return self._predict(images)

    def _go_back(self, reason: str) -> None:
        """Put the last healthy state back; the next time, the one before it."""
        self.adapter.load_state(*(self.snapshots[-1] if len(self.snapshots) == 1 else self.snapshots.pop()))
        self._decide("roll back", reason)

    def _settle(self) -> None:
        """Begin to watch a state that has come back."""
        self._mark()
        self.seen = 0
        self.mix.forget()  # of a model that is gone

    def _decide(self, action: Action, reason: str) -> None:
        """Count, keep and tell a decision."""
        decision = Decision(self.batch, action, reason)
        self.counts[action] += 1
        self.decisions.append(decision)
        if self._on_decision is not None:
            self._on_decision(decision)
        self._event = {"guard": action, "guard_reason": reason}

    # State

    def tensors(self) -> dict[str, Tensor]:
        """Every tensor that the next batch depends on."""
        return {**self.adapter.tensors(), **own_tensors(self)}

    def values(self) -> dict[str, Any]:
        """Every plain value that the next batch depends on, ready for JSON."""
        return {**self.adapter.values(), "guard": own_values(self)}

    def load_state(self, tensors: Mapping[str, Tensor], values: Mapping[str, Any]) -> None:
        """Put back what `tensors` and `values` gave."""
        theirs = {key: value for key, value in tensors.items() if not key.startswith(PREFIX)}
        self.adapter.load_state(theirs, {key: value for key, value in values.items() if key != "guard"})
        self._know_source()
        put_back(self, tensors, values["guard"])
