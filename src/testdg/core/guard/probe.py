"""Is a model still itself? A few images (the probe) are predicted now and then, and compared with the source.

The idea: what adaptation may do to predictions in a foreign domain is unknown, but on images like those of the training
set they should hardly change. A model is very sure of the images that it was trained on, though, and predicts them
right long after it has begun to fail on others like them. So pairs of them are blended such that contrast stays. The
source is only just sure of these, and a model that has forgotten a little predicts some of them otherwise. How much
that matters is weighed by the source: a change between two classes that it finds nearly as likely counts little.

The reference is always the source, never the last state, so a slow drift is seen as well as a fast one. The model is
judged as it predicts now, with all that it remembers: weights and stored statistics.
"""

import math
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor, nn

Batch = Tensor | tuple[Tensor, Tensor]
"""Images, or images and labels."""
Predict = Callable[[Tensor], Tensor]
"""Returns the logits of images."""

IMAGES = {"classification": 100, "segmentation": 4}
"""Images of the probe."""
PART = {"classification": 25, "segmentation": 2}
"""Images of it that are predicted at a time."""
LIMITS = {"classification": 0.04, "segmentation": 0.2}
"""Mean loss of the probe above which a model has forgotten too much. The loss of a changed prediction is the difference
of the source's probabilities of both classes; of a pixel, 1."""
STATISTICS_ALONE = 0.75
"""Factor of that limit where no weight moves: statistics are no reason for as much."""
STREAM_LIMIT = 0.4
"""Share of a probe of images of the stream that may be predicted otherwise: nobody knows whether they are clean."""
CLEAR = 0.5
"""Part of the limit by which the loss of one part must be below it to be enough; of n parts, their root less."""
BLENDS = {"image": 0.6, "batch": 0.7}
"""Share of an image in its blend with another one. Blends of 0.6 are harder; but a batch of them is of its own kind,
so a model that normalises by statistics of the stream or the batch gets blends that are more like images."""
MIN_CONFIDENCE = 0.8
"""Probability of the predicted class with which an image of the stream enters the probe."""


class Trouble(NamedTuple):
    """What is wrong with a model."""

    code: str
    reason: str


def blended(images: Tensor, share: float) -> Tensor:
    """Each image together with another one, at the mean and contrast of the image: a hard one of the same kind."""
    if len(images) < 2:
        return images
    mean = images.mean((1, 2, 3), keepdim=True)
    rest = images - mean
    both = share * rest + (1 - share) * rest.roll(len(images) // 2, 0)
    return (mean + both / math.hypot(share, 1 - share)).clamp(0, 1)


class Probe(nn.Module):
    """A few images, or their blends, and what the source predicts for them."""

    images: Tensor | None
    """The images as they were given."""
    classes: Tensor | None
    shares: Tensor | None
    """Probabilities of the classes, (N, C); None where each change counts in full."""

    def __init__(self, images: Tensor | None, task: str) -> None:
        super().__init__()
        self.size, self.part, self.task = IMAGES[task], PART[task], task
        self.origin = "stream" if images is None else "source"
        self.aligned = self.by_batch = self.weights = False
        """Whether the model normalises by statistics of the stream or the batch, whether predictions depend on the
        batch at all, and whether the method moves weights."""
        self.register_buffer("images", None if images is None else images[: self.size].clone())
        self.register_buffer("classes", None)
        self.register_buffer("shares", None)

    @property
    def ready(self) -> bool:
        """Whether there is something to compare with."""
        return self.classes is not None and len(self.classes) >= (self.size if self.origin == "stream" else 1)

    @property
    def least(self) -> int:
        """Images that a check predicts if nothing is wrong."""
        count = 0 if self.images is None else len(self.images)
        return count if self.by_batch and self.weights else min(self.part, count)

    @property
    def limit(self) -> float:
        if self.origin == "stream":
            return STREAM_LIMIT
        return LIMITS[self.task] * (1 if self.weights or not self.blends else STATISTICS_ALONE)

    @property
    def blends(self) -> bool:
        """Whether the images are clean and have a class each, so that they are blended."""
        return self.origin == "source" and self.task == "classification"

    def begin(self, predict: Predict, source: Predict) -> None:
        """Store what an adapter predicts before it learns, and how likely the source finds each class."""
        if self.images is None or self.classes is not None:
            return
        pictures = self._pictures()
        few = predict(pictures[:3])[:2], predict(pictures[:2])
        self.by_batch = self.aligned or not torch.allclose(*few, rtol=0.01, atol=0.01)
        parts = torch.split(pictures, self.least)
        self.classes = torch.cat([predict(part).argmax(1) for part in parts])
        if self.blends:
            self.shares = torch.cat([source(part).float().softmax(1) for part in parts])

    def _pictures(self) -> Tensor:
        assert self.images is not None
        return blended(self.images, BLENDS["batch" if self.aligned else "image"]) if self.blends else self.images

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

    def trouble(self, predict: Predict, turn: int) -> tuple[Trouble | None, int]:
        """Whether the model has forgotten too much, and how many images were predicted.

        Parts of the probe, from another one at each turn, are predicted until it is clear that it has not.
        """
        assert self.classes is not None
        numbers = list(torch.split(torch.arange(len(self.classes)), self.least))
        start = turn % len(numbers)
        pictures, losses, changes = self._pictures(), [], []
        for part in [*numbers[start:], *numbers[:start]]:
            now, before = predict(pictures[part]).argmax(1), self.classes[part]
            changes.append((now != before).float())
            losses.append(changes[-1])
            if self.shares is not None:
                known, found = self.shares[part].gather(1, torch.stack([before, now], 1)).unbind(1)
                losses[-1] = (known - found).clamp(min=0)
            loss = float(torch.cat(losses).mean())
            if loss < self.limit * (1 - CLEAR / math.sqrt(len(losses))):
                break
        predicted = sum(map(len, losses))
        if loss <= self.limit:
            return None, predicted
        whose = "the clean probe images" if self.origin == "source" else "the first images of the stream"
        whose = "pairs of clean probe images, blended," if self.blends else whose
        share = float(torch.cat(changes).mean())
        return Trouble("probe-changed", f"{share:.0%} of {whose} changed their class"), predicted
