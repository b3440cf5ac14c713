"""Is a model still itself? A few images are predicted now and then, and compared with what it said at first."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

IMAGES = {"classification": 100, "segmentation": 4}
"""Images of the probe."""
STRICT = {"classification": 0.03, "segmentation": 0.1}
LENIENT = {"classification": 0.2, "segmentation": 0.4}
"""Share of the probe, or of its pixels, that may be predicted otherwise while the stream is like the source, and else.

In a foreign domain a model may forget for a while; a probe that the stream itself gave is judged leniently, too.
"""
ALIKE = 2.0
"""How many times as unsure as of the probe the source may be of the stream for the two to be alike."""
SAMPLE = 16
"""Recent images of the stream that the source is asked about."""
SURE = 0.8
"""Probability of the predicted class with which an image of the stream enters the probe."""
SHARE = 0.04
"""Part of the passes of a method that may go into the probe."""
FORWARDS = 3
"""Passes of a step that learns, at least."""
FAR = 0.015
"""How far weights may move, in parts of their size, before the probe is passed again, whatever the schedule says."""
WATCHED = 4096
"""Values of a tensor at most for it to be watched as it moves."""


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

    def begin(self, predict: Any) -> None:
        """Note what a model says before it learns."""
        if self.images is not None and self.classes is None:
            logits = predict(self.images)
            self.classes, self.sureness = logits.argmax(1), sureness(logits)

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

    def agreement(self, predict: Any) -> float:
        """Share of the probe, or of its pixels, that is predicted as at first."""
        assert self.images is not None
        return float((predict(self.images).argmax(1) == self.classes).float().mean())

    def tolerance(self, source: Any, images: Tensor) -> float:
        """Share of the probe that may be predicted otherwise now; `source` predicts as the model did at first."""
        if self.origin == "stream":
            return LENIENT[self.task]
        assert self.sureness is not None
        unsure = 1 - float(sureness(source(images)))
        return (STRICT if unsure <= ALIKE * (1 - float(self.sureness)) else LENIENT)[self.task]

    def due(self, seen: int, learns: bool) -> bool:
        """Whether so many images since the last look pay for another one."""
        assert self.classes is not None
        return seen * SHARE * (FORWARDS if learns else 1) >= len(self.classes)


def sureness(logits: Tensor) -> Tensor:
    """Mean probability of the predicted class."""
    return logits.float().softmax(1).amax(1).mean()


class Movement:
    """How far the weights of an adapter have moved since the last look: small tensors stand for all."""

    def __init__(self, trainable: Mapping[str, nn.Parameter]) -> None:
        small = (parameter for parameter in trainable.values() if parameter.numel() <= WATCHED)
        self.watched = [parameter for parameter in small if float(parameter.detach().norm()) > 0]
        self.mark()

    @torch.no_grad()
    def mark(self) -> None:
        """Measure from here."""
        self.before = [parameter.detach().clone() for parameter in self.watched]

    @torch.no_grad()
    def distance(self) -> Tensor | None:
        """In parts of their size, on the device; None where nothing is watched."""
        if not self.watched:
            return None
        gaps = torch._foreach_sub([parameter.detach() for parameter in self.watched], self.before)
        moved = torch.stack(torch._foreach_norm(gaps)).norm()
        size: Tensor = torch.stack(torch._foreach_norm(self.before)).norm()
        return torch.div(moved, size.clamp(min=1e-12))
