"""Predictions as plain values: of the adapted model, with those of the source model for comparison."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

Map = NDArray[np.uint16]
Size = tuple[int, int]
"""Height and width of a picture."""


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """What the adapted model and the source model predict for one picture.

    For segmentation, the class is the one with the most pixels, and the confidence is the mean over pixels.
    """

    class_index: int
    confidence: float
    """Probability of the predicted class."""
    source_class_index: int
    source_confidence: float
    differs: float
    """1 if adaptation changed the prediction, else 0; for segmentation, the share of pixels that it changed."""
    map: Map | None = field(default=None, repr=False, compare=False)
    """For segmentation, the class of every pixel, (H, W)."""
    source_map: Map | None = field(default=None, repr=False, compare=False)


@dataclass(frozen=True, kw_only=True)
class Prediction(Comparison):
    """The prediction for one picture of a stream."""

    index: int
    """Number of the picture in the stream, from 0; unreadable pictures count."""
    file: str
    class_name: str
    source_class_name: str
    change: bool
    """Whether the method detected a change of conditions here."""
    learnt: bool
    reason: str
    """Why the guard did not learn from it, or what else it did; empty if it did not interfere."""


def compare(own: Tensor, source: Tensor, sizes: Sequence[Size]) -> list[Comparison]:
    """Compare the logits of the adapted model and of the source, for pictures of these sizes."""
    adapted = _predictions(own, sizes)
    unadapted = adapted if source is own else _predictions(source, sizes)
    found = []
    for one, other in zip(adapted, unadapted, strict=True):
        (label, confidence, pixels), (source_label, source_confidence, source_pixels) = one, other
        if pixels is None or source_pixels is None:
            differs = float(label != source_label)
        else:
            differs = float((pixels != source_pixels).mean())
        found.append(
            Comparison(
                class_index=label,
                confidence=confidence,
                source_class_index=source_label,
                source_confidence=source_confidence,
                differs=differs,
                map=pixels,
                source_map=source_pixels,
            )
        )
    return found


@torch.no_grad()
def _predictions(logits: Tensor, sizes: Sequence[Size]) -> list[tuple[int, float, Map | None]]:
    """Class and confidence of each picture and, for segmentation, the class of every pixel at the picture's size."""
    if logits.ndim == 2:
        confidences, classes = logits.float().softmax(1).max(1)
        return [(*one, None) for one in zip(classes.tolist(), confidences.tolist(), strict=True)]
    found: list[tuple[int, float, Map | None]] = []
    for one, size in zip(logits, sizes, strict=True):
        whole = F.interpolate(one[None].float(), size, mode="bilinear", align_corners=False)[0]
        confidences, classes = whole.softmax(0).max(0)
        counts = torch.bincount(classes.flatten(), minlength=len(one))
        pixels = classes.to(torch.int32).cpu().numpy().astype(np.uint16)
        found.append((int(counts.argmax()), float(confidences.mean()), pixels))
    return found
