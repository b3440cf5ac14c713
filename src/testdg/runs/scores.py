"""Scores: numbers of each image that add up, on the device, to the scores of a domain.

A score is chosen by the benchmark's task. It gives one row of numbers per image; rows are added up per segment, come
to the host in groups of batches, are kept in the events, and give the metrics of a domain once they are all there.
"""

import math
from abc import ABC, abstractmethod
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from testdg.data.segmentation.classes import IGNORED
from testdg.data.stream import Batch, Stream
from testdg.errors import UserError, look_up

EARLY = 10  # forward transfer looks at the first tenth of a domain's images
BINS = 15


class Metric(NamedTuple):
    """A number of a domain, and all that a table or a figure needs to know of it."""

    key: str
    name: str
    unit: str = "%"
    higher: bool = False
    """Whether a higher number is better."""
    digits: int = 1
    note: str = ""

    @property
    def title(self) -> str:
        """What stands above its numbers."""
        return f"{self.name}, {self.unit}" if self.unit else self.name

    def show(self, value: float, deviation: float | None = None, more: int = 0) -> str:
        """A number with its unit, and perhaps its deviation; with more digits than usual, if wanted."""
        numbers = [f"{one:.{self.digits + more}f}" for one in (value, deviation) if one is not None]
        return f"{' ± '.join(numbers)} {self.unit}".rstrip()

    def gain(self, reference: float, value: float) -> float:
        """How much better a number is than another."""
        return value - reference if self.higher else reference - value

    def describe(self) -> dict[str, Any]:
        """What a figure needs to know of it, as plain JSON."""
        return {**self._asdict(), "title": self.title}


class Score(ABC):
    """What is added up over the images of a domain."""

    metric: ClassVar[Metric]
    """The number that tables show."""
    others: ClassVar[tuple[Metric, ...]] = ()
    """Numbers that have a table of their own."""

    @abstractmethod
    def check(self, labels: Tensor, classes: int) -> None:
        """Refuse labels, still on the host, that are no classes of the model."""

    @abstractmethod
    def rows(self, logits: Tensor, labels: Tensor, early: Tensor) -> Tensor:
        """Numbers of each image, (N, K); `early` marks the first images of a domain. No transfer to the host."""

    @abstractmethod
    def pack(self, sums: list[float]) -> dict[str, Any]:
        """K sums as an event keeps them; `errors` is among them."""

    @abstractmethod
    def unpack(self, part: dict[str, Any]) -> np.ndarray[Any, np.dtype[np.float64]]:
        """The K sums that `pack` was given."""

    @abstractmethod
    def metrics(self, sums: np.ndarray[Any, np.dtype[np.float64]], images: int) -> dict[str, Any]:
        """The metrics of a domain by key, `error` among them; None where one is not finite."""


class Classification(Score):
    """Error, negative log-likelihood, expected calibration error, and the error on the first images.

    K = 4 + 15: errors, negative log-likelihood, early images, early errors; then, per bin of the largest
    probability, the sum of confidence minus correctness, whose absolute values make the calibration error.
    """

    metric = Metric("error", "error")
    others = (
        Metric("early_error", "early error", note="on the first tenth of each domain"),
        Metric("nll", "NLL", unit="", digits=3, note="negative log-likelihood"),
        Metric("ece", "ECE", note="calibration error"),
    )

    def check(self, labels: Tensor, classes: int) -> None:
        """Refuse a number that is no class."""
        wrong = labels[(labels < 0) | (labels >= classes)]
        if len(wrong):
            told = f"labels must be 0 to {classes - 1}; got {int(wrong[0])}"
            raise UserError(f"{told}: the images have other classes than the model")

    def rows(self, logits: Tensor, labels: Tensor, early: Tensor) -> Tensor:
        """Numbers of each image."""
        logs = logits.float().log_softmax(1)
        right = logits.argmax(1) == labels
        loss = -logs.gather(1, labels[:, None]).squeeze(1)
        confidence = logs.amax(1).exp()
        bins = (confidence * BINS).ceil().clamp(1, BINS) - 1  # (0, 1/15], (1/15, 2/15] ...
        inside = bins[:, None] == torch.arange(BINS, device=logits.device)
        gaps = inside * (confidence - right.float())[:, None]  # (N, BINS)
        return torch.cat([torch.stack([~right, loss, early, early & ~right], 1), gaps], 1)

    def pack(self, sums: list[float]) -> dict[str, Any]:
        """Counts as whole numbers, sums with six decimals, empty bins left out."""
        errors, loss, early, early_errors, *gaps = sums
        kept = {str(number): _short(gap) for number, gap in enumerate(gaps) if gap != 0}
        return {"errors": int(errors), "nll": _short(loss), "early": [int(early_errors), int(early)], "gaps": kept}

    def unpack(self, part: dict[str, Any]) -> np.ndarray[Any, np.dtype[np.float64]]:
        """The sums of `pack`; what was not finite is NaN."""
        sums = np.zeros(4 + BINS)
        sums[:4] = [part["errors"], _number(part["nll"]), part["early"][1], part["early"][0]]
        for number, gap in part["gaps"].items():
            sums[4 + int(number)] = _number(gap)
        return sums

    def metrics(self, sums: np.ndarray[Any, np.dtype[np.float64]], images: int) -> dict[str, Any]:
        """Errors and calibration error in percent, negative log-likelihood in nats."""
        errors, loss, early, early_errors = sums[:4].tolist()
        return {
            "error": 100 * errors / images,
            "early_error": 100 * early_errors / early if early else None,
            "nll": _finite(loss / images),
            "ece": _finite(100 * float(np.abs(sums[4:]).sum()) / images),
        }


class Segmentation(Score):
    """Mean intersection over union (mIoU), from the confusion matrix of the pixels that have a class.

    K = C * C: how many pixels of each class (row) are taken for each class (column). Logits are brought to the size
    of the label map first (bilinear), as predictions are scored at the size of the labels.
    """

    metric = Metric("miou", "mIoU", higher=True)

    def check(self, labels: Tensor, classes: int) -> None:
        """Refuse maps with a number that is neither a class nor ignored."""
        if labels.ndim != 3:
            raise UserError(f"label maps must be (N, H, W); got shape {tuple(labels.shape)}")
        wrong = labels[(labels != IGNORED) & ((labels < 0) | (labels >= classes))]
        if len(wrong):
            told = f"labels must be 0 to {classes - 1}, or {IGNORED} for none; got {int(wrong[0])}"
            raise UserError(f"{told}: the label maps have other classes than the model")

    def rows(self, logits: Tensor, labels: Tensor, early: Tensor) -> Tensor:
        """The confusion matrix of each image, flat."""
        return torch.stack([_confusion(one[None], maps) for one, maps in zip(logits, labels, strict=True)])

    def pack(self, sums: list[float]) -> dict[str, Any]:
        """Wrong pixels, and the confusion matrix as rows."""
        counts = np.array(sums, np.int64).reshape(math.isqrt(len(sums)), -1)
        return {"errors": int(counts.sum() - counts.trace()), "confusion": counts.tolist()}

    def unpack(self, part: dict[str, Any]) -> np.ndarray[Any, np.dtype[np.float64]]:
        """The confusion matrix, flat."""
        return np.array(part["confusion"], np.float64).reshape(-1)

    def metrics(self, sums: np.ndarray[Any, np.dtype[np.float64]], images: int) -> dict[str, Any]:
        """Wrong pixels, mIoU and the IoU of each class, in percent; None for a class that has and gets no pixels."""
        counts = sums.reshape(math.isqrt(len(sums)), -1)
        right, pixels = counts.diagonal(), counts.sum()
        union = counts.sum(0) + counts.sum(1) - right
        overlaps = [100 * float(r / u) if u else None for r, u in zip(right, union, strict=True)]
        known = [value for value in overlaps if value is not None]
        return {
            "error": 100 * float(1 - right.sum() / pixels) if pixels else 0.0,
            "miou": sum(known) / len(known) if known else None,
            "class_iou": overlaps,
        }


def _confusion(logits: Tensor, labels: Tensor) -> Tensor:
    """Pixels of each class that are taken for each class, (C * C), as whole numbers."""
    classes = logits.shape[1]
    if logits.shape[2:] != labels.shape:
        logits = F.interpolate(logits, labels.shape, mode="bilinear", align_corners=False)
    places = labels.long() * classes + logits[0].argmax(0)
    places = torch.where(labels == IGNORED, classes**2, places).flatten()  # one place more, for what is ignored
    counts = torch.zeros(classes**2 + 1, dtype=torch.int64, device=logits.device)
    return counts.scatter_add_(0, places, torch.ones_like(places))[:-1]


_SCORES: dict[str, type[Score]] = {"classification": Classification, "segmentation": Segmentation}


def find_score(task: str) -> Score:
    """The score of a task."""
    return look_up("task", task, _SCORES)()


def other_metrics() -> list[Metric]:
    """The numbers of all tasks that have a table of their own."""
    return [metric for score in _SCORES.values() for metric in score.others]


def metric_keys() -> list[str]:
    """The keys of all numbers of all tasks."""
    return [metric.key for score in _SCORES.values() for metric in (score.metric, *score.others)]


def measure(score: Score, stream: Stream, batch: Batch, logits: Tensor) -> tuple[list[dict[str, Any]], Tensor]:
    """What a batch adds to each of its segments: number and images, and the sums, still on the device, (S, K)."""
    device = logits.device
    score.check(batch.labels, logits.shape[1])
    early = EARLY * batch.positions < stream.sizes[batch.segments]
    labels, early = (tensor.to(device, non_blocking=True) for tensor in (batch.labels, early))
    visited, places, counts = np.unique(batch.segments.numpy(), return_inverse=True, return_counts=True)
    member = (torch.arange(len(visited))[:, None] == torch.from_numpy(places)).to(device, non_blocking=True)  # (S, N)
    rows = score.rows(logits, labels, early)  # (N, K)
    sums = torch.where(member[:, :, None], rows, 0).sum(1)
    parts = [{"segment": s, "images": n} for s, n in zip(visited.tolist(), counts.tolist(), strict=True)]
    return parts, sums


def _short(number: float) -> float | None:
    return round(number, 6) if math.isfinite(number) else None


def _number(value: float | None) -> float:
    return math.nan if value is None else float(value)


def _finite(number: float) -> float | None:
    return number if math.isfinite(number) else None
