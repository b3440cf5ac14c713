"""Losses and errors of training: of classes, (N), and of label maps, (N, H, W), in which pixels may be ignored."""

import torch
import torch.nn.functional as F
from torch import Tensor

from testdg.data.segmentation.classes import IGNORED
from testdg.errors import UserError

_AT_ONCE = 1 << 24  # labels that are counted together


def class_weights(labels: Tensor, classes: int, power: float) -> Tensor:
    """Weights of the classes, larger for rare ones, whose mean over the pixels is one."""
    parts = torch.split(labels.flatten(), _AT_ONCE)
    counts = torch.stack([torch.bincount(part, minlength=IGNORED + 1) for part in parts]).sum(0)[:classes]
    if not counts.sum():
        raise UserError("no pixel of the label maps has a class: all are ignored", code="no-labels")
    shares = counts / counts.sum()
    weights = shares.clamp(min=1 / counts.sum()) ** -power  # a class that never occurs has a finite weight, too
    return weights / (weights * shares).sum()


def map_loss(logits: Tensor, labels: Tensor, weights: Tensor, smoothing: float, overlap: float) -> Tensor:
    """Weighted cross entropy, and so many times the lack of overlap."""
    loss = cross_entropy(logits, labels, weights, smoothing)
    return loss + overlap * overlap_loss(logits, labels) if overlap else loss


def cross_entropy(logits: Tensor, labels: Tensor, weights: Tensor, smoothing: float = 0.0) -> Tensor:
    """Weighted mean over the pixels that have a class; zero where none has."""
    options = {"weight": weights, "ignore_index": IGNORED, "label_smoothing": smoothing}
    total = F.cross_entropy(logits, labels, reduction="sum", **options)  # type: ignore[arg-type]
    share = F.pad(weights, (0, IGNORED + 1 - len(weights)))[labels].sum()  # what is ignored weighs nothing
    return total / share.clamp(min=1e-6)


def overlap_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """One minus intersection over union of probabilities and labels, (N, H, W): the mean over classes that occur."""
    known = (labels != IGNORED)[:, None].float()
    truth = torch.zeros_like(logits).scatter_(1, torch.where(labels == IGNORED, 0, labels)[:, None], known)
    found = logits.softmax(1) * known
    shared, pixels = (found * truth).sum((0, 2, 3)), truth.sum((0, 2, 3))  # (C)
    lack = 1 - shared / (found.sum((0, 2, 3)) + pixels - shared).clamp(min=1)
    occurs = (pixels > 0).float()
    return (lack * occurs).sum() / occurs.sum().clamp(min=1)


def share_wrong(logits: Tensor, labels: Tensor) -> Tensor:
    """The share of images, or of pixels that have a class, which are taken for another one; on the device."""
    wrong = logits.argmax(1) != labels
    if labels.ndim == 1:
        return wrong.float().mean()
    known = labels != IGNORED
    return (wrong & known).sum() / known.sum().clamp(min=1)
