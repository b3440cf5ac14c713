"""Predictions as plain values: what the adapted model says of a batch, and the source beside it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from testdg.guards import Guard
from testdg.models import VisionModel

Map = NDArray[np.uint16]


@dataclass(frozen=True)
class Prediction:
    """What was predicted for one picture."""

    index: int
    """Number of the picture in the stream, from 0; those that could not be read count."""
    file: str
    class_index: int
    """The predicted class; of a segmentation, the one with the most pixels."""
    class_name: str
    confidence: float
    """Probability of the predicted class; of a segmentation, the mean over pixels."""
    source_index: int
    source_name: str
    source_confidence: float
    differs: float
    """1 where adaptation changed the prediction, else 0; of a segmentation, the share of pixels that it changed."""
    change: bool
    """Whether the method noticed here that the conditions have changed."""
    learnt: bool
    reason: str
    """Why nothing was learnt from it, or what else the guard did; empty where there is nothing to say."""
    map: Map | None = field(default=None, repr=False, compare=False)
    """The class of every pixel, (H, W), of a segmentation."""
    source_map: Map | None = field(default=None, repr=False, compare=False)


@dataclass(frozen=True)
class Item:
    """A picture on its way through the stream: its number, its name, and its own height and width."""

    index: int
    file: str
    size: tuple[int, int]


class Answer(NamedTuple):
    """What a model says of a batch, picture by picture."""

    classes: list[int]
    confidences: list[float]
    maps: list[Map | None]


class Predictor:
    """Predicts batches with an adapter (or a guard around it), and with the source model in one pass more.

    Where the method is `source` itself, that one pass is all.
    """

    def __init__(self, adapter: Any, source: VisionModel, names: Sequence[str]) -> None:
        self.adapter, self.source, self.names = adapter, source, list(names)
        self.still = adapter.name == "source"

    def __call__(self, images: Tensor, items: Sequence[Item]) -> list[Prediction]:
        """Predict images in [0, 1], (N, C, H, W), and learn from them."""
        sizes = [item.size for item in items]
        own = None if self.still else answer(self.adapter(images), sizes)
        source = answer(self.by_source(images), sizes)
        own = own or source
        change, learnt, reason = self.told()
        return [
            Prediction(
                index=item.index,
                file=item.file,
                class_index=own.classes[place],
                class_name=self.names[own.classes[place]],
                confidence=own.confidences[place],
                source_index=source.classes[place],
                source_name=self.names[source.classes[place]],
                source_confidence=source.confidences[place],
                differs=difference(own, source, place),
                change=change and place == 0,
                learnt=learnt,
                reason=reason,
                map=own.maps[place],
                source_map=source.maps[place],
            )
            for place, item in enumerate(items)
        ]

    @torch.no_grad()
    def by_source(self, images: Tensor) -> Tensor:
        """Logits of the source model."""
        with self.adapter.autocast():
            prepared = self.source.prepare(images.to(self.source.device))
            return self.source(prepared).logits.float()  # type: ignore[no-any-return]

    def told(self) -> tuple[bool, bool, str]:
        """Whether the last batch began a new domain, whether it was learnt from, and what the guard says."""
        change = bool(self.adapter.diagnostics.get("change", False))
        if not isinstance(self.adapter, Guard):
            return change, not self.still, ""
        told = self.adapter.told
        pause = f"learning pauses for {told['guard_pause']} more images" if "guard_pause" in told else ""
        return change, self.adapter.learnt and not told, str(told.get("guard_reason", pause))


def difference(own: Answer, source: Answer, place: int) -> float:
    """How far two answers differ about a picture: 0 or 1; of maps, the share of pixels."""
    mine, theirs = own.maps[place], source.maps[place]
    if mine is None or theirs is None:
        return float(own.classes[place] != source.classes[place])
    return float((mine != theirs).mean())


@torch.no_grad()
def answer(logits: Tensor, sizes: Sequence[tuple[int, int]]) -> Answer:
    """Classes and confidences of pictures that have these heights and widths."""
    if logits.ndim == 2:
        confidences, classes = logits.float().softmax(1).max(1)
        return Answer(classes.tolist(), confidences.tolist(), [None] * len(classes))
    found = [_answer_map(one, size) for one, size in zip(logits, sizes, strict=True)]
    return Answer(*(list(part) for part in zip(*found, strict=True)))


def _answer_map(logits: Tensor, size: tuple[int, int]) -> tuple[int, float, Map]:
    """The class with the most pixels, the mean confidence, and the class of every pixel of the picture itself."""
    whole = F.interpolate(logits[None].float(), size, mode="bilinear", align_corners=False)[0]
    confidences, classes = whole.softmax(0).max(0)
    counts = torch.bincount(classes.flatten(), minlength=len(logits))
    return int(counts.argmax()), float(confidences.mean()), classes.to(torch.int32).cpu().numpy().astype(np.uint16)
