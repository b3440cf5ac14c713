"""Is a model still itself? A few images are predicted now and then, and compared with the first predictions.

The idea: what adaptation may do to predictions in a foreign domain is unknown, but on images like those of the training
set they should hardly change. So the first predictions for a few such images (the probe) are stored, and the share that
stays equal (the agreement) is measured during the stream. Low agreement is excused while the stream itself is
foreign, which the source reveals by its low confidence, but never below `1 - LENIENT`.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from testdg.core.adapter import Adapter
from testdg.core.graphs import Recorded
from testdg.core.weights import frozen_copy
from testdg.models import VisionModel
from testdg.models.alignment import confidence
from testdg.models.blocks import watching

Batch = Tensor | tuple[Tensor, Tensor]
"""Images, or images and labels."""
Predict = Callable[[Tensor], Tensor]
"""Returns the logits of images."""
State = tuple[dict[str, Tensor], dict[str, Any]]
"""Tensors and plain values of an adapter."""

IMAGES = {"classification": 100, "segmentation": 4}
"""Images of the probe."""
STRICT = {"classification": 0.03, "segmentation": 0.1}
"""Share of the probe, or of its pixels, that may be predicted otherwise while the stream is like the source."""
LENIENT = 0.4
"""The same share while the stream is foreign, or where the probe is made of images of the stream."""
HALF_PROBE_MARGIN = 2 / 3
"""Part of `STRICT` up to which a look at half of the probe is enough."""
MAX_UNCERTAINTY_RATIO = 2.0
"""A stream is foreign where the source is more than this many times as unsure of it as of the probe."""
TRAIN_SET_CONFIDENCE_BONUS = 0.01
"""Added to the uncertainty on the probe: a source is surer of the images that it was trained on."""
RECENT = {"classification": 60, "segmentation": 4}
"""Last images of the stream, which the source predicts, too."""
MIN_CONFIDENCE = 0.8
"""Probability of the predicted class with which an image of the stream enters the probe."""
SHARE = 0.03
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
"""Part of `FAR` after which a check is due as long as little is known of a method, and after trouble."""
TRUST_GROWTH = 1.2
"""Factor of that part after each healthy check, until it is 1."""
JUMP = 0.5
"""Part of `FAR` that no single step may take: a rate that high ruins a model before a check is due."""
WATCHED = 4096
"""Number of values of each tensor whose movement is watched: the first ones."""


def copy_state(adapter: Adapter) -> State:
    return {name: value.detach().clone() for name, value in adapter.tensors().items()}, adapter.values()


class Probe(nn.Module):
    """A few images, and what was predicted for them at first."""

    images: Tensor | None
    classes: Tensor | None
    confidence: Tensor | None

    def __init__(self, images: Tensor | None, task: str) -> None:
        super().__init__()
        self.size, self.task = IMAGES[task], task
        self.origin = "stream" if images is None else "source"
        self.register_buffer("images", None if images is None else images[: self.size].clone())
        self.register_buffer("classes", None)
        self.register_buffer("confidence", None)

    @property
    def ready(self) -> bool:
        """Whether there is something to compare with."""
        return self.classes is not None and len(self.classes) >= (self.size if self.origin == "stream" else 1)

    def begin(self, predict: Predict, source: Predict) -> None:
        """Store what an adapter predicts before it learns, and how confident the source is."""
        if self.images is not None and self.classes is None:
            self.classes, self.confidence = predict(self.images).argmax(1), confidence(source(self.images))

    def first_images(self, batches: Iterable[Batch], first: list[Tensor]) -> Iterator[Batch]:
        """Pass batches of a warm-up on, and collect enough of their images for a probe in `first`."""
        for batch in batches:
            images = batch if isinstance(batch, Tensor) else batch[0]
            if sum(map(len, first)) < self.size and (not first or first[0].shape[1:] == images.shape[1:]):
                first.append(images)
            yield batch

    @torch.no_grad()
    def collect(self, images: Tensor, logits: Tensor) -> None:
        """Without source images: add confident predictions from the beginning of the stream."""
        if self.ready or self.origin != "stream":
            return
        sure = logits.softmax(1).amax(1).reshape(len(logits), -1).mean(1) > MIN_CONFIDENCE
        if self.images is not None and self.images.shape[1:] != images.shape[1:]:
            return
        images, classes = images[sure], logits[sure].argmax(1)
        if self.images is not None and self.classes is not None:
            images, classes = torch.cat([self.images, images]), torch.cat([self.classes, classes])
        self.images, self.classes = images[: self.size].clone(), classes[: self.size].clone()

    def agreement(self, predict: Predict, half: int) -> float:
        """Share of the probe, or of its pixels, that is predicted as at first.

        The first (0) or second (1) half of it is enough if nearly all of that is.
        """
        assert self.images is not None
        assert self.classes is not None
        middle = len(self.images) // 2
        first, second = slice(0, middle), slice(middle, None)
        same: list[Tensor] = []  # of each half, 1 where an image or a pixel is predicted as at first, else 0
        for part in (second, first) if half else (first, second):
            images, classes = self.images[part], self.classes[part]
            same.append((predict(images).argmax(1) == classes).float() if len(images) else classes.float())
            if len(images) and same[0].mean() >= 1 - STRICT[self.task] * HALF_PROBE_MARGIN:
                break
        return float(torch.cat(same).mean())

    def forgotten(self, agreement: float, source: Predict, images: Tensor) -> bool:
        """Whether the agreement is too low.

        The source predicts the images of the stream only where the answer depends on them, that is, where a foreign
        stream would excuse the model.
        """
        if self.origin == "stream" or agreement < 1 - LENIENT:
            return agreement < 1 - LENIENT
        if agreement >= 1 - STRICT[self.task]:
            return False
        assert self.confidence is not None
        uncertainty = 1 - float(self.confidence) + TRAIN_SET_CONFIDENCE_BONUS
        return not 1 - float(confidence(source(images))) > MAX_UNCERTAINTY_RATIO * uncertainty


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
        self.watched = {  # views of the weights
            name: [parameter.detach().flatten()[:WATCHED] for parameter in group] for name, group in groups.items()
        }
        self.before = {name: torch.cat(parts) for name, parts in self.watched.items() if parts}
        self._recorded = Recorded(lambda logits: {"numbers": self._numbers(logits)}, copies=False)

    def mark(self) -> None:
        """Measure from here."""
        for name, before in self.before.items():
            before.copy_(torch.cat(self.watched[name]))

    @torch.no_grad()
    def after(self, logits: Tensor) -> Step:
        """What a step has done, in one transfer to the host."""
        finite, moved, *classes = self._recorded(None, logits)["numbers"].tolist()
        return Step(bool(finite) and math.isfinite(moved), moved, list(map(int, classes)))

    def _numbers(self, logits: Tensor) -> Tensor:
        moved = [logits.new_zeros(())]
        for name, before in self.before.items():
            way = (torch.cat(self.watched[name]) - before).norm()
            moved.append(way / (FAR[name] * before.norm().clamp(min=1e-12)))
        numbers = torch.stack([torch.isfinite(logits).all().float(), torch.stack(moved).amax()])
        return torch.cat([numbers, logits.argmax(1).float()]) if logits.ndim == 2 else numbers


@dataclass
class Checks:
    """The plain numbers that the next check depends on; they are saved as they are."""

    unchecked: int = 0
    """Images since the last check."""
    healthy: int = 0
    """Healthy checks since the last trouble."""
    passes: float = 0.0
    """Passes of an image through the model when it is learnt from; a mean over `counted` batches."""
    counted: int = 0
    moved: float = 0.0
    """How far the weights have moved since the last check."""
    trust: float = FIRST_TRUST
    """How far they may move until the next check, as a share of what is far."""


class Health:
    """Decides whether the model of an adapter is still itself: a copy of the source, a probe, and a look at each step.

    A check costs passes of the probe, so it is due only when enough images have paid for it (`SHARE`), or when the
    weights have moved far. What is far grows with every healthy check: little is known of a method at first.
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
            networks = [module.network for module in self.adapter.modules() if isinstance(module, VisionModel)]
            with watching(*networks, note=count):
                yield
            passes = passed / images + (BACKWARD if self.movement.before else 0)
            checks.passes = (checks.passes * checks.counted + passes) / (checks.counted + 1)
            checks.counted += 1
        else:
            yield
        checks.unchecked += max(images, IMAGES_PER_PASS.get(self.adapter.model.device.type, 1))

    def trouble_of(self, step: Step) -> str | None:
        """What is wrong with the model after a step, without a check; None where nothing is known to be."""
        if not step.finite:
            return "predictions or weights are not finite"
        jump, self.checks.moved = step.moved - self.checks.moved, step.moved
        if jump > JUMP:
            return "the weights jumped further in one step than any step should take them: is the rate too high?"
        return None

    @property
    def due(self) -> bool:
        """Whether it is time for a check: the weights have moved far, or enough images have paid for it."""
        checks, probe = self.checks, self.probe
        if not probe.ready or probe.classes is None:
            return False
        return checks.moved > checks.trust or checks.unchecked * SHARE * checks.passes >= len(probe.classes)

    def check(self) -> str | None:
        """Predict the probe and say what is wrong; None where the model is healthy."""
        assert self.recent is not None
        self.restart()
        checks = self.checks
        agreement = self.probe.agreement(self.adapter.predict, checks.healthy % 2)
        if self.probe.forgotten(agreement, self.source_logits, self.recent):
            whose = "source images" if self.probe.origin == "source" else "the first images of the stream"
            return f"only {agreement:.0%} of {whose} are predicted as before"
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
        return {"checks": asdict(self.checks), "origin": self.probe.origin}

    def load_state(self, tensors: Mapping[str, Tensor], values: Mapping[str, Any]) -> None:
        """Restore what `tensors` and `values` returned."""
        device = self.adapter.model.device
        for name in ("images", "classes", "confidence"):
            value = tensors.get(f"probe.{name}")
            setattr(self.probe, name, None if value is None else value.to(device, copy=True))
        recent = tensors.get("recent")
        self.recent = None if recent is None else recent.to(device, copy=True)
        self.watch_source()
        for name, before in self.movement.before.items():
            if (value := tensors.get(f"before.{name}")) is not None:  # none was saved before the first batch
                before.copy_(value)
        self.checks, self.probe.origin = Checks(**values["checks"]), values["origin"]
