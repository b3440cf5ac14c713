"""Is a model still itself? A few images are predicted now and then, and compared with what it said at first."""

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from testdg.core.graphs import Recorded
from testdg.models import VisionModel
from testdg.models.alignment import confidence
from testdg.models.blocks import watching

IMAGES = {"classification": 100, "segmentation": 4}
"""Images of the probe."""
STRICT = {"classification": 0.03, "segmentation": 0.1}
LENIENT = 0.4
NEARLY = 2 / 3
"""Share of the probe, or of its pixels, that may be predicted otherwise while the stream is like the source, and else.

In a foreign domain a model may forget for a while; a probe that the stream itself gave is judged leniently, too.
Half of the probe is enough where no more than that part of `STRICT` is predicted otherwise.
"""
ALIKE = 2.0
"""How many times as unsure as of the probe the source may be of the stream for the two to be alike."""
LEARNT_BY_HEART = 0.01
"""Doubt that a source does not have about images that it was trained on."""
RECENT = {"classification": 60, "segmentation": 4}
"""Last images of the stream, about which the source is asked."""
SURE = 0.8
"""Probability of the predicted class with which an image of the stream enters the probe."""
SHARE = 0.03
"""Part of the passes of a method that may go into the probe."""
BACKWARD = 2
"""Passes that a backward pass is worth."""
COUNTED = 8
"""Batches whose passes are counted: some methods learn from several batches at once."""
LIKE_ONE = {"cpu": 1, "cuda": 8}
"""Images that a device passes in about the time of one: what a batch counts at least until the next look."""
FAR = {"vectors": 0.015, "matrices": 0.05}
"""How far weights may move, in parts of their size, before the probe is passed again, whatever the schedule says."""
TRUST = 0.1
"""Part of that after which the probe is passed as long as little is known of a method, and after trouble."""
MORE_TRUST = 1.2
"""How many times as far weights may move after each healthy look, until they may go all the way."""
JUMP = 0.5
"""Part of that which no single step takes: a rate that high ruins a model before the probe shows it."""
WATCHED = 4096
"""Values of each tensor that are watched as they move: the first ones."""


class Probe(nn.Module):
    """A few images, and what was predicted for them at first."""

    images: Tensor | None
    classes: Tensor | None
    sureness: Tensor | None

    def __init__(self, images: Tensor | None, task: str) -> None:
        super().__init__()
        self.wanted, self.task = IMAGES[task], task
        self.origin = "stream" if images is None else "source"
        self.register_buffer("images", None if images is None else images[: self.wanted].clone())
        self.register_buffer("classes", None)
        self.register_buffer("sureness", None)

    @property
    def ready(self) -> bool:
        """Whether there is something to compare with."""
        return self.classes is not None and len(self.classes) >= (self.wanted if self.origin == "stream" else 1)

    def begin(self, predict: Any, source: Any) -> None:
        """Note what an adapter predicts before it learns, and how sure the source is of it."""
        if self.images is not None and self.classes is None:
            self.classes, self.sureness = predict(self.images).argmax(1), confidence(source(self.images))

    @torch.no_grad()
    def collect(self, images: Tensor, logits: Tensor) -> None:
        """Without source images: take sure predictions from the beginning of the stream."""
        if self.ready or self.origin != "stream":
            return
        sure = logits.softmax(1).amax(1).reshape(len(logits), -1).mean(1) > SURE
        if self.images is not None and self.images.shape[1:] != images.shape[1:]:
            return
        taken, classes = images[sure], logits[sure].argmax(1)
        self.images = (taken if self.images is None else torch.cat([self.images, taken]))[: self.wanted].clone()
        self.classes = (classes if self.classes is None else torch.cat([self.classes, classes]))[: self.wanted].clone()

    def agreement(self, predict: Any, half: int) -> float:
        """Share of the probe, or of its pixels, that is predicted as at first.

        The first (0) or second (1) half of it is enough if nearly all of that is.
        """
        assert self.images is not None
        middle = len(self.images) // 2
        halves = slice(0, middle), slice(middle, None)
        same = self._same(predict, halves[half])
        if not len(same) or same.mean() < 1 - STRICT[self.task] * NEARLY:
            same = torch.cat([same, self._same(predict, halves[1 - half])])
        return float(same.mean())

    def _same(self, predict: Any, part: slice) -> Tensor:
        """1 where an image, or a pixel, of a part is predicted as at first, else 0."""
        assert self.images is not None
        assert self.classes is not None
        images, classes = self.images[part], self.classes[part]
        return (predict(images).argmax(1) == classes).float() if len(images) else classes.float()

    def forgotten(self, agreement: float, source: Any, images: Tensor) -> bool:
        """Whether so little agreement is too little; `source` predicts images of the stream as the model did at first.

        It is asked where the answer depends on it alone: where a foreign stream excuses what the probe shows.
        """
        if self.origin == "stream" or agreement < 1 - LENIENT:
            return agreement < 1 - LENIENT
        return agreement < 1 - STRICT[self.task] and not self._foreign(source(images))

    def _foreign(self, logits: Tensor) -> bool:
        """Whether the source is much less sure of images than of the probe."""
        assert self.sureness is not None
        return 1 - float(confidence(logits)) > ALIKE * (1 - float(self.sureness) + LEARNT_BY_HEART)

    def due(self, seen: int, passes: float) -> bool:
        """Whether so many images since the last look, each of which took so many passes, pay for another one."""
        assert self.classes is not None
        return seen * SHARE * passes >= len(self.classes)


def learn_some(adapter: Any, images: Tensor, worth: Sequence[bool], probe: Probe) -> Tensor:
    """Predict images, and learn from those that are worth it, which may enter the probe."""
    if all(worth):
        logits: Tensor = adapter(images)
        probe.collect(images, logits)
        return logits
    places = torch.tensor(worth, device=images.device)
    others = adapter.predict(images[~places])
    learnt: Tensor = adapter(images[places])
    logits = learnt.new_empty(len(images), *learnt.shape[1:])
    logits[places], logits[~places] = learnt, others
    probe.collect(images[places], learnt)
    return logits


@contextmanager
def counting(adapter: nn.Module) -> Iterator[list[int]]:
    """Note the images of every pass of the adapter's models within."""
    counts: list[int] = []
    networks = [module.network for module in adapter.modules() if isinstance(module, VisionModel)]
    with watching(*networks, note=lambda _, given, __: counts.append(len(given))):
        yield counts


class Step(NamedTuple):
    """What a step has done."""

    finite: bool
    """Whether predictions and weights are."""
    moved: float
    """How far the weights have moved since the last look; above 1 is far."""
    classes: list[int]
    """What was predicted, one class an image; empty for maps."""


class Movement:
    """How far the weights of an adapter have moved since the last look, in parts of what they may; above 1 is far."""

    def __init__(self, trainable: Mapping[str, nn.Parameter]) -> None:
        known = [p for p in trainable.values() if p.is_contiguous() and float(p.detach().norm()) > 0]
        groups = {"vectors": [p for p in known if p.ndim < 2], "matrices": [p for p in known if p.ndim > 1]}
        self.watched = {  # in the memory of the weights
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
        """What a step has done, in one way to the host."""
        finite, moved, *classes = self._recorded(None, logits)["numbers"].tolist()
        return Step(bool(finite) and math.isfinite(moved), moved, list(map(int, classes)))

    def _numbers(self, logits: Tensor) -> Tensor:
        moved = [logits.new_zeros(())]
        for name, before in self.before.items():
            way = (torch.cat(self.watched[name]) - before).norm()
            moved.append(way / (FAR[name] * before.norm().clamp(min=1e-12)))
        numbers = torch.stack([torch.isfinite(logits).all().float(), torch.stack(moved).amax()])
        return torch.cat([numbers, logits.argmax(1).float()]) if logits.ndim == 2 else numbers
