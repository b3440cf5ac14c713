"""Predictions as plain values: of the adapted model, with those of the source model for comparison."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from testdg.runs.session import Session

Map = NDArray[np.uint16]


@dataclass(frozen=True)
class Prediction:
    """The prediction for one picture."""

    index: int
    """Number of the picture in the stream, from 0; unreadable pictures count."""
    file: str
    class_index: int
    """The predicted class; for segmentation, the one with the most pixels."""
    class_name: str
    confidence: float
    """Probability of the predicted class; for segmentation, the mean over pixels."""
    source_class_index: int
    source_class_name: str
    source_confidence: float
    differs: float
    """1 if adaptation changed the prediction, else 0; for segmentation, the share of pixels that it changed."""
    change: bool
    """Whether the method detected a change of conditions here."""
    learnt: bool
    reason: str
    """Why the guard did not learn from it, or what else it did; empty if it did not interfere."""
    map: Map | None = field(default=None, repr=False, compare=False)
    """For segmentation, the class of every pixel, (H, W)."""
    source_map: Map | None = field(default=None, repr=False, compare=False)


@dataclass(frozen=True, eq=False)
class Item:
    """A decoded picture with its number and name, or the reason why it cannot be read."""

    index: int
    file: str
    image: Tensor | None
    size: tuple[int, int] = (0, 0)
    """Height and width of the file."""
    reason: str = ""


class Answer(NamedTuple):
    """The prediction of one model for one picture."""

    class_index: int
    confidence: float
    map: Map | None = None


class Both(NamedTuple):
    """The predictions of the adapted model and of the source, and how far they differ."""

    own: Answer
    source: Answer
    differs: float
    """0 or 1; for segmentation, the share of pixels."""


class Predictor:
    """Predicts batches with a session and, in one more pass, with its source model.

    If the method is `source` itself, that one pass is all.
    """

    def __init__(self, session: Session) -> None:
        self.session = session
        self.learns = session.adapter.learns

    def __call__(self, images: Tensor, items: Sequence[Item]) -> list[Prediction]:
        """Predict images in [0, 1], (N, C, H, W), and learn from them."""
        session, names = self.session, self.session.names
        event = session.step(images) if self.learns else None
        by_source = session.predict_by(session.model, images)
        answers = compare(by_source if event is None else event.logits, by_source, [item.size for item in items])
        change, learnt, reason = (False, False, "") if event is None else (event.change, event.learnt, event.reason)
        return [
            Prediction(
                index=item.index,
                file=item.file,
                class_index=own.class_index,
                class_name=names[own.class_index],
                confidence=own.confidence,
                source_class_index=source.class_index,
                source_class_name=names[source.class_index],
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
