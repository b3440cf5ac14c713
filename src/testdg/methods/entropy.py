"""Losses and measures of predictions: the class dimension is 1, images or pixels are all the others."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def entropy(logits: Tensor) -> Tensor:
    """Entropy of each prediction."""
    log_p = logits.float().log_softmax(1)
    return -(log_p.exp() * log_p).sum(1)


def largest_entropy(classes: int, share: float = 1.0) -> float:
    """A share of the entropy of a uniform prediction."""
    return share * math.log(classes)


def soft_cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """Cross-entropy of each prediction to a soft label, both given as logits."""
    return -(labels.float().softmax(1) * logits.float().log_softmax(1)).sum(1)


def symmetric_cross_entropy(one: Tensor, other: Tensor) -> Tensor:
    """Mean of the cross-entropies of two predictions, each to the other."""
    return 0.5 * (soft_cross_entropy(one, other) + soft_cross_entropy(other, one))


def masked_mean(values: Tensor, mask: Tensor) -> Tensor:
    """Mean of the values that a mask keeps; zero, with zero gradients, where it keeps none."""
    kept = torch.where(mask, values, 0.0)
    return kept.sum() / mask.sum().clamp(min=1)
