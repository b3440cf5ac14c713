"""What is checked after every step (is it finite, and not too large?), and when the probe is predicted."""

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from testdg.core.adapter import Adapter
from testdg.core.graphs import Recorded
from testdg.core.guard.probe import Probe, Trouble
from testdg.core.weights import frozen_copy, uses_batch
from testdg.models import VisionModel
from testdg.models.blocks import watching

State = tuple[dict[str, Tensor], dict[str, Any]]
"""Tensors and plain values of an adapter."""

RECENT = {"classification": 60, "segmentation": 4}
"""Last images of the stream, which the source predicts, too."""
SHARE = 0.035
"""Part of the passes of a method that may be spent on checks."""
BACKWARD = 2
"""Passes that a backward pass is worth."""
COUNTED = 8
"""Batches whose passes are counted: some methods learn from several batches at once."""
IMAGES_PER_PASS = {"cpu": 1, "cuda": 8}
"""Images that a device processes in about the time of one: a smaller batch counts as this many until the next check."""
FAR = {"vectors": 0.015, "matrices": 0.05}
"""How far weights may move, relative to their norm, before a check is due at once."""
FIRST_TRUST = 0.1
"""Part of all that may pass between checks (images, movement) as long as little is known of a method, and after
trouble."""
TRUST_GROWTH = 1.4
"""Factor of that part after each healthy check, until it is 1."""
JUMP = 0.5
"""Part of `FAR` that no single step may take: a rate that high ruins a model before a check is due."""
WATCHED = 4096
"""Number of values of each tensor whose movement is watched: the first ones."""


def copy_state(adapter: Adapter) -> State:
    return {name: value.detach().clone() for name, value in adapter.tensors().items()}, adapter.values()


class Step(NamedTuple):
    """What a step has done."""

    finite: bool
    """Whether predictions and weights are finite."""
    moved: float
    """How far the weights have moved since the last check; above 1 is far."""
    classes: list[int]
    """What was predicted, one class per image; empty for maps."""


class Movement:
    """Measures how far the weights of an adapter have moved since the last check, in parts of `FAR`."""

    def __init__(self, trainable: Mapping[str, nn.Parameter]) -> None:
        known = [p for p in trainable.values() if p.is_contiguous() and float(p.detach().norm()) > 0]
        groups = {"vectors": [p for p in known if p.ndim < 2], "matrices": [p for p in known if p.ndim > 1]}
        self.watched = {name: group for name, group in groups.items() if group}
        """The parameters themselves, not views of them: a view in a copy of a guard would not follow its weights."""
        self.before = {name: self._weights(name) for name in self.watched}
        self._recorded = Recorded(self._numbers, copies=False)

    def _weights(self, name: str) -> Tensor:
        return torch.cat([parameter.detach().flatten()[:WATCHED] for parameter in self.watched[name]])

    def mark(self) -> None:
        """Measure from here."""
        for name, before in self.before.items():
            before.copy_(self._weights(name))

    @torch.no_grad()
    def after(self, logits: Tensor) -> Step:
        """What a step has done, in one transfer to the host."""
        finite, moved, *classes = self._recorded(None, logits)["numbers"].tolist()
        return Step(bool(finite) and math.isfinite(moved), moved, list(map(int, classes)))

    def _numbers(self, logits: Tensor) -> dict[str, Tensor]:
        moved = [logits.new_zeros(())]
        for name, before in self.before.items():
            way = (self._weights(name) - before).norm()
            moved.append(way / (FAR[name] * before.norm().clamp(min=1e-12)))
        numbers = torch.stack([torch.isfinite(logits).all().float(), torch.stack(moved).amax()])
        classes = logits.argmax(1).float() if logits.ndim == 2 else logits.new_zeros(0)
        return {"numbers": torch.cat([numbers, classes])}


@dataclass
class Checks:
    """The plain numbers that the next check depends on; they are saved as they are."""

    unchecked: int = 0
    """Images learnt from since the last check."""
    made: int = 0
    """Checks so far."""
    earned: float = 0.0
    """Passes that checks may take, after what they have taken."""
    healthy: int = 0
    """Healthy checks since the last trouble."""
    passes: float = 0.0
    """Passes of an image through the model when it is learnt from; a mean over `counted` batches."""
    counted: int = 0
    moved: float = 0.0
    """How far the weights have moved since the last check."""
    trust: float = FIRST_TRUST
    """Part of the usual images and of what is far that may pass until the next check."""


class Health:
    """Decides whether the model of an adapter is still itself: a copy of the source, a probe, and a look at each step.

    A check costs passes of the probe, so it is due only when enough images have paid for it (`SHARE`), or when the
    weights have moved far. Both grow with every healthy check: little is known of a method at first, and after trouble.
    """

    def __init__(self, adapter: Adapter, probe: Tensor | None) -> None:
        self.adapter, self.probe = adapter, Probe(probe, adapter.model.task)
        self.movement = Movement({})  # until `watch_source`
        self.clear()

    def clear(self) -> None:
        """Forget the stream."""
        self.checks = Checks()
        self.recent: Tensor | None = None  # the last images that were worth learning from

    def watch_source(self) -> None:
        """Copy the model that `reset` returns to, which may be a result of `warm_up`, and watch the weights."""
        state = copy_state(self.adapter)
        self.adapter.reset()
        self.source = frozen_copy(self.adapter.model)
        self.movement = Movement(self.adapter.trainable())
        self.probe.weights = bool(self.movement.before)
        self.probe.aligned = any(
            model.alignment is not None or any(map(uses_batch, model.modules()))
            for model in self.adapter.modules()
            if isinstance(model, VisionModel)
        )
        self.adapter.load_state(*state)
        self.restart()

    def restart(self) -> None:
        """Count images and movement from here: after a check, or when another state has been restored."""
        self.movement.mark()
        self.checks.moved, self.checks.unchecked = 0.0, 0

    @torch.no_grad()
    def source_logits(self, images: Tensor) -> Tensor:
        """Predictions of the source model, in the precision of the adapter."""
        with self.adapter.autocast():
            return self.source(self.source.prepare(images)).logits  # type: ignore[no-any-return]

    def note(self, images: Tensor) -> None:
        """Store the last images of the stream, which the source may have to predict."""
        recent = self.recent if self.recent is not None and self.recent.shape[1:] == images.shape[1:] else images[:0]
        self.recent = torch.cat([recent, images])[-RECENT[self.adapter.model.task] :]

    @contextmanager
    def counting(self, images: int) -> Iterator[None]:
        """Count the passes of the adapter's models while it learns from a batch; after a few batches they are known."""
        checks, passed = self.checks, 0

        def count(_: nn.Module, given: Tensor, __: object) -> None:
            nonlocal passed
            passed += len(given)

        if checks.counted < COUNTED:
            with watching(
                *(part.network for part in self.adapter.modules() if isinstance(part, VisionModel)), note=count
            ):
                yield
            passes = passed / images + (BACKWARD if self.movement.before else 0)
            checks.passes = (checks.passes * checks.counted + passes) / (checks.counted + 1)
            checks.counted += 1
        else:
            yield
        checks.unchecked += images
        worth = max(images, IMAGES_PER_PASS.get(self.adapter.model.device.type, 1))
        checks.earned += worth * SHARE * checks.passes / checks.trust

    def trouble_of(self, step: Step) -> Trouble | None:
        """What is wrong with the model after a step, without a check; None where nothing is known to be."""
        if not step.finite:
            return Trouble("not-finite", "predictions or weights are not finite")
        jump, self.checks.moved = step.moved - self.checks.moved, step.moved
        if jump > JUMP:
            return Trouble("step-too-large", "the weights jumped too far in one step: is the learning rate too high?")
        return None

    @property
    def due(self) -> bool:
        """Whether it is time for a check: the weights have moved far, or enough images have paid for it."""
        checks, probe = self.checks, self.probe
        if not probe.ready or probe.classes is None:
            return False
        return checks.moved > checks.trust or checks.earned >= probe.least

    def check(self) -> Trouble | None:
        """Predict the probe and say what is wrong; None where the model is healthy."""
        self.restart()
        checks = self.checks
        checks.made += 1
        trouble, predicted = self.probe.trouble(self.adapter.predict, checks.made)
        least = float(self.probe.least)
        checks.earned = max(min(checks.earned, least) - predicted, -least)
        if trouble is not None:
            return trouble
        checks.healthy += 1
        checks.trust = min(1.0, TRUST_GROWTH * checks.trust)
        return None

    def tensors(self) -> dict[str, Tensor]:
        """Every tensor that the next check depends on."""
        tensors = {f"probe.{name}": value for name, value in self.probe.state_dict().items()}
        if self.recent is not None:
            tensors["recent"] = self.recent
        return {**tensors, **{f"before.{name}": value for name, value in self.movement.before.items()}}

    def values(self) -> dict[str, Any]:
        """Every plain value that the next check depends on, ready for JSON."""
        return {"checks": asdict(self.checks), "origin": self.probe.origin, "by_batch": self.probe.by_batch}

    def load_state(self, tensors: Mapping[str, Tensor], values: Mapping[str, Any]) -> None:
        """Restore what `tensors` and `values` returned."""
        device = self.adapter.model.device
        for name in ("images", "classes", "shares"):
            value = tensors.get(f"probe.{name}")
            setattr(self.probe, name, None if value is None else value.to(device, copy=True))
        recent = tensors.get("recent")
        self.recent = None if recent is None else recent.to(device, copy=True)
        self.probe.origin, self.probe.by_batch = values["origin"], values["by_batch"]
        self.watch_source()
        for name, before in self.movement.before.items():
            if (value := tensors.get(f"before.{name}")) is not None:  # none was saved before the first batch
                before.copy_(value)
        self.checks = Checks(**values["checks"])
