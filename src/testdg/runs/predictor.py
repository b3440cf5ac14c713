"""Predictions as plain values: what the adapted model says of a batch, and the source beside it."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

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


@dataclass(frozen=True, eq=False)
class Item:
    """A picture on its way through the stream: its number, its name, and the picture or why there is none."""

    index: int
    file: str
    image: Tensor | None
    size: tuple[int, int] = (0, 0)
    """Its own height and width."""
    reason: str = ""


class Answer(NamedTuple):
    """What a model says of a picture."""

    class_index: int
    confidence: float
    map: Map | None = None


class Both(NamedTuple):
    """What the adapted model and the source say of a picture, and how far they differ."""

    own: Answer
    source: Answer
    differs: float
    """0 or 1; of maps, the share of pixels."""


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
        logits = None if self.still else self.adapter(images)
        by_source = self.logits(self.source, images)
        change, learnt, reason = self.told()
        answers = compare(by_source if logits is None else logits, by_source, sizes)
        return [
            Prediction(
                index=item.index,
                file=item.file,
                class_index=own.class_index,
                class_name=self.names[own.class_index],
                confidence=own.confidence,
                source_index=source.class_index,
                source_name=self.names[source.class_index],
                source_confidence=source.confidence,
                differs=differs,
                change=change and place == 0,
                learnt=learnt,
                reason=reason,
                map=own.map,
                source_map=source.map,
            )
            for place, (item, (own, source, differs)) in enumerate(zip(items, answers, strict=True))
        ]

    @torch.no_grad()
    def logits(self, model: VisionModel, images: Tensor) -> Tensor:
        """What a model says, in the precision of the adapter."""
        with self.adapter.autocast():
            return model(model.prepare(images.to(model.device))).logits.float()  # type: ignore[no-any-return]

    def told(self) -> tuple[bool, bool, str]:
        """Whether the last batch began a new domain, whether it was learnt from, and what the guard says."""
        change = bool(self.adapter.diagnostics.get("change", False))
        return change, self.adapter.learnt, self.adapter.decision


def compare(own: Tensor, source: Tensor, sizes: Sequence[tuple[int, int]]) -> list[Both]:
    """Answers from the logits of the adapted model and of the source, for pictures of these heights and widths."""
    answers = _answers(own, sizes)
    others = answers if source is own else _answers(source, sizes)
    return [Both(mine, theirs, _difference(mine, theirs)) for mine, theirs in zip(answers, others, strict=True)]


def _difference(own: Answer, source: Answer) -> float:
    if own.map is None or source.map is None:
        return float(own.class_index != source.class_index)
    return float((own.map != source.map).mean())


@torch.no_grad()
def _answers(logits: Tensor, sizes: Sequence[tuple[int, int]]) -> list[Answer]:
    if logits.ndim == 2:
        confidences, classes = logits.float().softmax(1).max(1)
        return [Answer(*one) for one in zip(classes.tolist(), confidences.tolist(), strict=True)]
    return [_answer_map(one, size) for one, size in zip(logits, sizes, strict=True)]


def _answer_map(logits: Tensor, size: tuple[int, int]) -> Answer:
    """The class with the most pixels, the mean confidence, and the class of every pixel of the picture itself."""
    whole = F.interpolate(logits[None].float(), size, mode="bilinear", align_corners=False)[0]
    confidences, classes = whole.softmax(0).max(0)
    counts = torch.bincount(classes.flatten(), minlength=len(logits))
    values = classes.to(torch.int32).cpu().numpy().astype(np.uint16)
    return Answer(int(counts.argmax()), float(confidences.mean()), values)
