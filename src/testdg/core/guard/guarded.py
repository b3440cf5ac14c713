"""The guard: an adapter that skips useless images and undoes steps that damage the model.

Before a step it looks at the images (`inputs`) and at the mix of predicted classes (`mix`); after a step it looks at
the weights and at the predictions for a few known images (`health`). It has three answers, in this order: predict
without learning, restore the last healthy state, reset to the source and learn nothing for a while. It needs no labels,
and nothing that an adapter does not have anyway.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from testdg.bounds import require_range
from testdg.core.adapter import Adapter
from testdg.core.guard.decisions import Action, Counters, Decision, OnDecision, Snapshot
from testdg.core.guard.health import FIRST_TRUST, Health, copy_state
from testdg.core.guard.inputs import REASONS, Inputs
from testdg.core.guard.mix import MIXED, Mix, spread
from testdg.core.guard.probe import Probe, Trouble
from testdg.core.state import below
from testdg.errors import UserError

PAUSE = 1000
"""Images without learning after the first fall back; twice as many after each further one."""
SLOWLY = 4
"""After a second trouble, one batch in so many is learnt from."""
PREFIX = "guard."
"""Beginning of the names of the guard's own tensors in a saved state."""


class Guard:
    """An adapter that cannot be ruined; it is used in place of the adapter inside.

    Args:
        adapter: Made by `adapt`.
        probe: Clean images in [0, 1] like the training images of the model, without labels, 100 at most (4 street
            scenes): the model must continue to predict them as it did at first. By default, the first images of
            `warm_up`, or the first confident ones of the stream.
        patience: After this many unhealthy checks without as many healthy ones between, the source predicts, and
            nothing is learnt for a while.
        snapshots: Number of healthy states in memory.
        on_decision: Called with every decision; `counts` and `decisions` have them, too.
    """

    def __init__(
        self,
        adapter: Adapter,
        probe: Tensor | None = None,
        *,
        patience: int = 3,
        snapshots: int = 2,
        on_decision: OnDecision = None,
    ) -> None:
        for name, value in (("patience", patience), ("snapshots", snapshots)):
            if value < 1:
                raise UserError(f"{name} of a guard must be 1 or more; got {value}", code="guard-option")
        model = adapter.model
        self.adapter, self.patience, self.on_decision = adapter, patience, on_decision
        self.decisions: deque[Decision] = deque(maxlen=100)
        self.inputs = Inputs(model.channels).to(model.device)
        self.health = Health(adapter, None if probe is None else adapter.checked(probe))
        self.snapshots: deque[Snapshot] = deque(maxlen=snapshots)
        self._start()

    def _start(self) -> None:
        self.counters = Counters()
        self.mix = Mix(self.adapter.model.classes if self.adapter.model.task == "classification" else 1)
        self.decisions.clear()
        self.snapshots.clear()
        self.inputs.clear()
        self.health.clear()
        self._event: dict[str, str | int] = {}  # of the last batch
        self._stepped = False  # whether the adapter has seen the last batch
        self._skips = ""  # code of the row of skipped batches that the last batch belongs to

    def __getattr__(self, name: str) -> Any:
        """Forward everything else to the adapter."""
        if name == "adapter":  # before __init__
            raise AttributeError(name)
        if name in ("to", "cuda", "cpu"):  # they would return the adapter without its guard
            raise UserError("a guard cannot move: bring the model to its device before adapt()", code="guard-device")
        return getattr(self.adapter, name)

    # Predicting and learning

    def __call__(self, images: Tensor) -> Tensor:
        """Predict a batch, and learn from it if it is useful and harms nothing."""
        self.adapter.require_source()
        images = self.adapter.accept(images)
        self._event, self._stepped = {}, False
        if not self.snapshots:
            self._prepare(images)
        if self.counters.pause > 0:
            logits = self._predict(images)
            self.counters.pause -= len(images)
            self._event = {"guard_pause": max(0, self.counters.pause)}
        else:
            logits = self._checked_step(images)
        if self._event.get("guard") != "skip":
            self._skips = ""
        self.counters.batch += 1
        self.counters.image += len(images)
        return logits

    def predict(self, images: Tensor) -> Tensor:
        return self.adapter.predict(images)

    def warm_up(self, batches: Iterable[Tensor | tuple[Tensor, Tensor]]) -> None:
        """Let the adapter learn from source images; the first of them become the probe, if none was given."""
        first: list[Tensor] = []
        self.adapter.warm_up(self.probe.first_images(batches, first))
        if self.probe.images is None and first:
            self.health.probe = Probe(torch.cat(first).to(self.adapter.model.device), self.adapter.model.task)

    def reset(self) -> None:
        self.adapter.reset()
        self._start()

    def roll_back(self, reason: str) -> None:
        """Restore the last healthy state; the next time, the one before it."""
        if not self.snapshots:
            raise UserError("there is no healthy state before the first batch", code="no-healthy-state")
        self._roll_back("requested", reason)

    def _roll_back(self, code: str, reason: str) -> None:
        snapshot = self.snapshots[-1] if len(self.snapshots) == 1 else self.snapshots.pop()
        self.adapter.load_state(*snapshot.state)
        self._decide("roll back", code, f"{reason}; what was learnt since image {snapshot.image:,} is undone")

    # What is known of the last batch

    @property
    def guard(self) -> Guard:
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

    def event(self) -> dict[str, str | int]:
        """The decision about the last batch, or the images left in a pause; empty where the batch was learnt from."""
        return dict(self._event)

    @property
    def counts(self) -> dict[Action, int]:
        return self.counters.actions

    @property
    def guard_counts(self) -> dict[str, int]:
        """`counts` with underscores in the names."""
        return {action.replace(" ", "_"): count for action, count in self.counts.items()}

    @property
    def probe(self) -> Probe:
        return self.health.probe

    @property
    def pause(self) -> int:
        return self.counters.pause

    # Decisions

    def _prepare(self, images: Tensor) -> None:
        """Store what must be known before the first step: the source, its predictions, a state to go back to."""
        logits = self.adapter.predict(images)
        self.health.watch_source()
        self.probe.begin(self.adapter.predict, self.health.source_logits)
        self.mix.add(logits)
        self._take_snapshot()

    def _take_snapshot(self) -> None:
        self.snapshots.append(Snapshot(copy_state(self.adapter), self.counters.image))

    def _predict(self, images: Tensor) -> Tensor:
        logits = self.adapter.predict(images)
        self.mix.add(logits)
        return logits

    def _checked_step(self, images: Tensor) -> Tensor:
        """Learn from a batch if nothing speaks against it; an invalid batch changes nothing."""
        recent = self.health.recent
        look = self.inputs.look(images)
        try:
            require_range(look.low, look.high)
            images = images.clamp(0, 1) if look.low < 0 or look.high > 1 else images
            return self._skip_learn_or_undo(images, look.flags)
        except BaseException:
            self.inputs.forget_last()
            self.health.recent = recent
            raise

    def _skip_learn_or_undo(self, images: Tensor, flags: Sequence[Sequence[bool]]) -> Tensor:
        useful = [not any(row) for row in flags]
        if 2 * sum(useful) < len(useful) or not any(useful):
            against = [sum(column) for column in zip(*flags, strict=True)]
            return self._skip(images, *REASONS[against.index(max(against))])
        self.health.note(images)
        if not self.mix.known:
            return self._skip(images, "few-predictions", "too few predictions so far to know the mix of classes")
        before = self.mix.one_sided
        if self.mix.check() and (answer := self._refuse_one_sided(images, begins=not before)) is not None:
            return answer
        if self.counters.troubles > 1 and self.counters.batch % SLOWLY:
            return self._skip(images, "learns-slowly", f"after several troubles, one batch in {SLOWLY} is learnt from")
        logits = self._learn(images, useful)
        step = self.health.movement.after(logits)
        self.mix.add_classes(step.classes)
        trouble = self.health.trouble_of(step)
        if trouble is None and self.health.due:
            trouble = self._check()
        return logits if trouble is None else self._undo(images, trouble)

    def _refuse_one_sided(self, images: Tensor, begins: bool) -> Tensor | None:
        """Predict without learning if predictions are of one class; None if the batch may be learnt from anyway.

        The cause may be the model, the stream, or a domain that is hard to recognise. So the model is checked when that
        begins. If it is healthy, and the method handles streams of few classes or the source sees several classes in
        the same images, there is no reason not to learn.
        """
        health = self.health
        if begins and health.checks.unchecked and self.probe.ready and (trouble := self._check()) is not None:
            return self._undo(images, trouble)
        if self.probe.ready and self.adapter.handles_bunches:
            return None
        if self.probe.ready and health.recent is not None:
            classes = health.source_logits(health.recent).argmax(1).tolist()
            if spread(classes, self.mix.classes) >= MIXED:
                return None
        return self._skip(images, "one-sided", str(self.mix))

    def _learn(self, images: Tensor, useful: Sequence[bool]) -> Tensor:
        """Learn from the useful images, and predict the others."""
        self._stepped = True
        with self.health.counting(len(images)):
            if all(useful):
                logits: Tensor = self.adapter(images)
                self.probe.collect(images, logits)
                return logits
            places = torch.tensor(useful, device=images.device)
            others = self.adapter.predict(images[~places])
            learnt = self.adapter(images[places])
            logits = learnt.new_empty(len(images), *learnt.shape[1:])
            logits[places], logits[~places] = learnt, others
            self.probe.collect(images[places], learnt)
            return logits

    def _check(self) -> Trouble | None:
        """Check the model and say what is wrong; a healthy state becomes a snapshot."""
        trouble = self.health.check()
        if trouble is None:
            self.counters.troubles = 0 if self.health.checks.healthy >= self.patience else self.counters.troubles
            self._take_snapshot()
        return trouble

    def _skip(self, images: Tensor, code: str, reason: str) -> Tensor:
        logits = self._predict(images)
        self._decide("skip", code, reason)
        return logits

    def _undo(self, images: Tensor, trouble: Trouble) -> Tensor:
        """Restore the last healthy state, after several troubles the source, and predict with it."""
        counters = self.counters
        counters.troubles += 1
        self.health.checks.healthy, self.health.checks.trust = 0, FIRST_TRUST
        if counters.troubles < self.patience:
            self._roll_back(*trouble)
        else:
            counters.pause = PAUSE * 2 ** self.counts["fall back"]
            self.adapter.reset()
            self.snapshots.clear()
            self._take_snapshot()
            pause = f"the source predicts, and nothing is learnt from the next {counters.pause:,} images"
            self._decide("fall back", trouble.code, f"{trouble.reason}, again: {pause}")
        return self._predict(images)

    def _decide(self, action: Action, code: str, reason: str) -> None:
        """Count a decision; the first of a row is recorded and reported. After an undo another state is watched."""
        self.counts[action] += 1
        self._event = {"guard": action, "guard_code": code, "guard_reason": reason}
        if action == "skip" and code == self._skips:
            return
        self._skips = code if action == "skip" else ""
        decision = Decision(self.counters.batch, action, reason, code)
        self.decisions.append(decision)
        if self.on_decision is not None:
            self.on_decision(decision)
        if action != "skip":
            self.health.restart()
            self.mix = Mix(self.mix.classes)  # the old predictions are of a state that is gone

    # State

    def tensors(self) -> dict[str, Tensor]:
        """Every tensor that the next batch depends on."""
        own = {"thumbnails": self.inputs.thumbnails} | {f"health.{k}": v for k, v in self.health.tensors().items()}
        for number, snapshot in enumerate(self.snapshots):
            own |= {f"snapshots.{number}.{name}": value for name, value in snapshot.state[0].items()}
        return {**self.adapter.tensors(), **{PREFIX + name: value for name, value in own.items()}}

    def values(self) -> dict[str, Any]:
        """Every plain value that the next batch depends on, ready for JSON."""
        own = {
            "patience": self.patience,
            "max_snapshots": self.snapshots.maxlen,
            "snapshots": [{"values": snapshot.state[1], "image": snapshot.image} for snapshot in self.snapshots],
            "skips": self._skips,
            "counters": asdict(self.counters),
            "mix": asdict(self.mix),
            "health": self.health.values(),
            "decisions": [asdict(decision) for decision in self.decisions],
        }
        return {**self.adapter.values(), "guard": own}

    def load_state(self, tensors: Mapping[str, Tensor], values: Mapping[str, Any]) -> None:
        """Restore what `tensors` and `values` returned."""
        theirs = {name: value for name, value in tensors.items() if not name.startswith(PREFIX)}
        self.adapter.load_state(theirs, {name: value for name, value in values.items() if name != "guard"})
        own = values["guard"]
        self.inputs.thumbnails.copy_(tensors[PREFIX + "thumbnails"])
        self.health.load_state(below(PREFIX + "health.", tensors), own["health"])
        self.snapshots.clear()
        for number, plain in enumerate(own["snapshots"]):
            stored = below(f"{PREFIX}snapshots.{number}.", tensors)
            state = {name: value.clone() for name, value in stored.items()}, plain["values"]
            self.snapshots.append(Snapshot(state, plain["image"]))
        self._skips = own["skips"]
        self.counters = Counters(**own["counters"])
        self.mix = Mix(**own["mix"])
        self.decisions.clear()
        self.decisions.extend(Decision(**decision) for decision in own["decisions"])

    def save(self, folder: str | Path, note: Mapping[str, Any] | None = None) -> None:
        """Write the adapter and the guard: everything that the next batch depends on."""
        self.adapter.save_state(folder, self.tensors(), self.values(), note)


guard = Guard
