"""Scores: numbers of each image, which are added up on the device, and the metrics that follow from their sums.

A metric is one object. It names the columns that are added up over the images of a domain, and computes its value from
their sums. The score of a task is a list of metrics; everything else follows from it: what a log entry stores, how it
is read, what tables, figures and results show. To add a metric, add one object to `others` of its task.

A metric need not be a mean over images: columns may be histograms. The area under the ROC curve of the confidence, for
example, follows from two histograms of the confidence, one of correct and one of wrong predictions. So does the
calibration error, whose column `gaps` has a number for each bin.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from operator import attrgetter
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from testdg.data.segmentation.classes import IGNORED
from testdg.data.stream import Batch, Stream
from testdg.errors import UserError, look_up

EARLY = 10  # the early error is that of the first 1 / EARLY of a domain's images
BINS = 15
Vector = NDArray[np.float64]
Sums = Mapping[str, Vector]
"""The sums of all columns by name, each flat."""


@dataclass(frozen=True)
class Answers:
    """Predictions of some images, and values that columns share; `early` marks the first images of a domain."""

    logits: Tensor
    labels: Tensor
    early: Tensor

    @cached_property
    def logs(self) -> Tensor:
        """Log-probabilities, (N, C)."""
        return self.logits.float().log_softmax(1)

    @cached_property
    def right(self) -> Tensor:
        """Whether each image is classified correctly, (N)."""
        return self.logits.argmax(1) == self.labels

    @cached_property
    def confusion(self) -> Tensor:
        """Pixels of each class (row) that are predicted as each class (column), (N, C * C)."""
        pairs = zip(self.logits, self.labels, strict=True)
        return torch.stack([_confusion(logits[None], labels) for logits, labels in pairs])


def _undefined(sums: Sums, images: int) -> None:
    """No value: the default of `Metric.compute`."""


class Column(NamedTuple):
    """A number of each image, (N), or several, (N, width), that are added up over images.

    Whole numbers are stored in log entries as they are. Other numbers are stored with six decimals: a single one as it
    is, several as a mapping from the position to the number, without zeros.
    """

    name: str
    update: Callable[[Answers], Tensor]
    """Computes the numbers on the device, without a transfer to the host."""
    width: int | None = 1
    """How many numbers; None for classes times classes."""
    whole: bool = True


@dataclass(frozen=True)
class Metric:
    """A number of a domain: how it is computed, and how it is shown."""

    key: str
    name: str
    unit: str = "%"
    higher: bool = False
    """Whether a higher number is better."""
    digits: int = 1
    note: str = ""
    columns: tuple[Column, ...] = field(default=(), repr=False)
    compute: Callable[[Sums, int], float | None] = field(default=_undefined, repr=False)
    """The value from the sums of the columns and the number of images; None where it is not defined."""

    @property
    def title(self) -> str:
        return f"{self.name}, {self.unit}" if self.unit else self.name

    def show(self, value: float, deviation: float | None = None, more: int = 0) -> str:
        """A number with its unit, and its deviation if there is one, with `more` additional digits."""
        numbers = [f"{one:.{self.digits + more}f}" for one in (value, deviation) if one is not None]
        return f"{' ± '.join(numbers)} {self.unit}".rstrip()

    def gain(self, reference: float, value: float) -> float:
        """How much better a number is than another."""
        return value - reference if self.higher else reference - value

    def describe(self) -> dict[str, Any]:
        """Describe the metric for a figure, as plain JSON values."""
        shown = ("key", "name", "unit", "higher", "digits", "note", "title")
        return {name: getattr(self, name) for name in shown}


class Score(ABC):
    """The metrics of a task, and the sums that they need.

    Sums are one flat vector of K numbers, so that a batch needs one transfer and sums of batches can be added; the
    columns name its parts. Single numbers come before the longer columns.
    """

    metric: ClassVar[Metric]
    """The number that tables show."""
    others: ClassVar[tuple[Metric, ...]] = ()
    """Numbers that have a table of their own."""

    @abstractmethod
    def check(self, labels: Tensor, classes: int) -> None:
        """Refuse labels, still on the host, that are not classes of the model."""

    @cached_property
    def columns(self) -> list[Column]:
        """The columns of all metrics, in the order of the flat vector; metrics may share a column."""
        found = {}
        for metric in (self.metric, *self.others):
            found.update({column.name: column for column in metric.columns})
        return sorted(found.values(), key=lambda column: column.width or math.inf)

    def rows(self, logits: Tensor, labels: Tensor, early: Tensor) -> Tensor:
        """The columns of each image side by side, (N, K), on the device."""
        answers = Answers(logits, labels, early)
        return torch.cat([column.update(answers).reshape(len(labels), -1) for column in self.columns], 1)

    def pack(self, sums: list[float]) -> dict[str, Any]:
        """K sums as a log entry stores them, by column; `errors` is one of them."""
        named = self._split(np.array(sums, np.float64))
        return {column.name: _pack(column, named[column.name]) for column in self.columns}

    def unpack(self, part: dict[str, Any]) -> Vector:
        """The inverse of `pack`; NaN if a number was not finite, or if the log is older than its metric."""
        found = []
        for column in self.columns:
            stored = part[column.name] if column in self.metric.columns else part.get(column.name)
            found.append(_unpack(column, stored))
        return np.concatenate(found)

    def metrics(self, sums: Vector, images: int) -> dict[str, Any]:
        """The metrics of a domain by key; None where one is not defined or not finite."""
        named = self._split(sums)
        values = {metric.key: metric.compute(named, images) for metric in (self.metric, *self.others)}
        return {key: value if value is None or math.isfinite(value) else None for key, value in values.items()}

    def _split(self, sums: Vector) -> dict[str, Vector]:
        widths = [column.width for column in self.columns]
        known = sum(width for width in widths if width is not None)
        ends = np.cumsum([len(sums) - known if width is None else width for width in widths])
        return dict(zip((column.name for column in self.columns), np.split(sums, ends[:-1]), strict=True))


def _pack(column: Column, values: Vector) -> Any:
    if column.whole:
        counts = values.astype(np.int64)
        if column.width == 1:
            return int(counts[0])
        return (_square(counts) if column.width is None else counts).tolist()
    shown = [round(value, 6) if math.isfinite(value) else None for value in values.tolist()]
    return shown[0] if column.width == 1 else {str(n): value for n, value in enumerate(shown) if values[n] != 0}


def _unpack(column: Column, stored: Any) -> Vector:
    if stored is None:
        return np.full(column.width or 1, np.nan)
    if not isinstance(stored, dict):
        return np.array(stored, np.float64).reshape(-1)
    values = np.zeros(column.width or 0)
    for number, value in stored.items():
        values[int(number)] = np.nan if value is None else value
    return values


def _square(values: NDArray[Any]) -> NDArray[Any]:
    """Reshape a flat square matrix to rows and columns."""
    return values.reshape(math.isqrt(len(values)), -1)


# Classification


def _wrong(answers: Answers) -> Tensor:
    return ~answers.right


def _error(sums: Sums, images: int) -> float:
    return 100 * float(sums["errors"][0]) / images


def _early(answers: Answers) -> Tensor:
    return torch.stack([answers.early & ~answers.right, answers.early], 1)


def _early_error(sums: Sums, images: int) -> float | None:
    errors, early = sums["early"].tolist()
    return 100 * errors / early if early else None


def _loss(answers: Answers) -> Tensor:
    return -answers.logs.gather(1, answers.labels[:, None]).squeeze(1)


def _nll(sums: Sums, images: int) -> float:
    return float(sums["nll"][0]) / images


def _gaps(answers: Answers) -> Tensor:
    """Confidence minus correctness in the bin of the confidence, (N, BINS): (0, 1/15], (1/15, 2/15] ..."""
    confidence = answers.logs.amax(1).exp()
    bins = (confidence * BINS).ceil().clamp(1, BINS) - 1
    inside = bins[:, None] == torch.arange(BINS, device=confidence.device)
    return inside * (confidence - answers.right.float())[:, None]


def _calibration(sums: Sums, images: int) -> float:
    return 100 * float(np.abs(sums["gaps"]).sum()) / images


class Classification(Score):
    """Error and expected calibration error in percent, the error on the first images, negative log-likelihood."""

    metric = Metric("error", "error", columns=(Column("errors", _wrong),), compute=_error)
    others = (
        Metric(
            "early_error", "early error", note="on the first tenth of each domain",
            columns=(Column("early", _early, 2),), compute=_early_error,
        ),
        Metric(
            "nll", "NLL", unit="", digits=3, note="negative log-likelihood",
            columns=(Column("nll", _loss, whole=False),), compute=_nll,
        ),
        Metric(
            "ece", "ECE", note="calibration error",
            columns=(Column("gaps", _gaps, BINS, whole=False),), compute=_calibration,
        ),
    )  # fmt: skip

    def check(self, labels: Tensor, classes: int) -> None:
        wrong = labels[(labels < 0) | (labels >= classes)]
        if len(wrong):
            message = f"labels must be 0 to {classes - 1}; got {int(wrong[0])}"
            raise UserError(f"{message}: the images have other classes than the model", code="label-range")


# Segmentation


def _wrong_pixels(answers: Answers) -> Tensor:
    matrices = answers.confusion.reshape(len(answers.labels), answers.logits.shape[1], -1)
    pixels: Tensor = matrices.sum((1, 2)) - matrices.diagonal(dim1=1, dim2=2).sum(1)
    return pixels


def _class_iou(sums: Sums) -> list[float | None]:
    """The IoU of each class in percent; None for a class that neither a label nor a prediction has."""
    counts = _square(sums["confusion"])
    right = counts.diagonal()
    union = counts.sum(0) + counts.sum(1) - right
    return [100 * float(r / u) if u else None for r, u in zip(right, union, strict=True)]


def _miou(sums: Sums, images: int) -> float | None:
    known = [value for value in _class_iou(sums) if value is not None]
    return sum(known) / len(known) if known else None


class Segmentation(Score):
    """Mean intersection over union (mIoU) in percent, from the confusion matrix of the pixels that have a class.

    Logits are first resized (bilinear) to the label map, so that predictions are scored at the size of the labels.
    """

    metric = Metric(
        "miou", "mIoU", higher=True, compute=_miou,
        columns=(Column("errors", _wrong_pixels), Column("confusion", attrgetter("confusion"), None)),
    )  # fmt: skip

    def check(self, labels: Tensor, classes: int) -> None:
        if labels.ndim != 3:
            raise UserError(f"label maps must be (N, H, W); got shape {tuple(labels.shape)}", code="label-shape")
        wrong = labels[(labels != IGNORED) & ((labels < 0) | (labels >= classes))]
        if len(wrong):
            message = f"labels must be 0 to {classes - 1}, or {IGNORED} for none; got {int(wrong[0])}"
            raise UserError(f"{message}: the label maps have other classes than the model", code="label-range")

    def metrics(self, sums: Vector, images: int) -> dict[str, Any]:
        """Adds `error`, the percentage of wrong pixels, and `class_iou`, a list with a number for each class."""
        named = self._split(sums)
        counts = _square(named["confusion"])
        error = 100 * float(1 - counts.diagonal().sum() / counts.sum()) if counts.sum() else 0.0
        return {"error": error, **super().metrics(sums, images), "class_iou": _class_iou(named)}


def _confusion(logits: Tensor, labels: Tensor) -> Tensor:
    """Pixels of each class that are predicted as each class, (C * C), as whole numbers."""
    classes = logits.shape[1]
    if logits.shape[2:] != labels.shape:
        logits = F.interpolate(logits, labels.shape, mode="bilinear", align_corners=False)
    places = labels.long() * classes + logits[0].argmax(0)
    places = torch.where(labels == IGNORED, classes**2, places).flatten()  # one more bin, for ignored pixels
    counts = torch.zeros(classes**2 + 1, dtype=torch.int64, device=logits.device)
    return counts.scatter_add_(0, places, torch.ones_like(places))[:-1]


# Tasks


_SCORES: dict[str, type[Score]] = {"classification": Classification, "segmentation": Segmentation}


def find_score(task: str) -> Score:
    return look_up("task", task, _SCORES)()


def other_metrics() -> list[Metric]:
    """The numbers of all tasks that have a table of their own."""
    return [metric for score in _SCORES.values() for metric in score.others]


def metric_keys() -> list[str]:
    """The keys of all numbers of all tasks."""
    return [metric.key for score in _SCORES.values() for metric in (score.metric, *score.others)]


def measure(score: Score, stream: Stream, batch: Batch, logits: Tensor) -> tuple[list[dict[str, Any]], Tensor]:
    """Add up a batch by segment of the stream: number and images of each, and the sums, (S, K), on the device."""
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
