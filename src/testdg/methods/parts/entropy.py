"""Losses and measures of predictions: the class dimension is 1, images or pixels are all the others."""

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

EASY = 0.4
"""Cross-entropy below which the released code of BECoTTA leaves a pixel out."""


def entropy(logits: Tensor) -> Tensor:
    """Entropy of each prediction."""
    log_p = logits.float().log_softmax(1)
    return -(log_p.exp() * log_p).sum(1)


def opinion_entropy(logits: Tensor) -> Tensor:
    """Entropy of each prediction as an opinion: beliefs in the classes, and one share, C over the sum, for none.

    The length of the logits is constant in the gradient, so that the loss never rewards larger logits.
    """
    logits = logits.float()
    length = torch.linalg.vector_norm(logits, dim=1, keepdim=True).clamp(min=1e-12)
    turned = logits / length * length.detach()
    return entropy(torch.cat([turned, torch.full_like(length, math.log(logits.shape[1]))], 1))


LOSSES: dict[str, Callable[[Tensor], Tensor]] = {"entropy": entropy, "come": opinion_entropy}
"""Losses of each prediction that reward confidence, by the name of a setting."""


def largest_entropy(classes: int, share: float = 1.0) -> float:
    """A share of the entropy of a uniform prediction."""
    return share * math.log(classes)


def effective_classes(mix: Tensor) -> Tensor:
    """Effective number of classes of a mix: the exponential of its entropy."""
    return (-(mix * mix.clamp(min=1e-8).log()).sum()).exp()


def soft_cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """Cross-entropy of each prediction to a soft label, both given as logits."""
    return -(labels.float().softmax(1) * logits.float().log_softmax(1)).sum(1)


def symmetric_cross_entropy(one: Tensor, other: Tensor) -> Tensor:
    """Mean of the cross-entropies of two predictions, each to the other."""
    return 0.5 * (soft_cross_entropy(one, other) + soft_cross_entropy(other, one))


def masked_mean(values: Tensor, mask: Tensor) -> Tensor:
    """Mean of the masked values; zero, with zero gradients, if there are none."""
    kept = torch.where(mask, values, 0.0)
    return kept.sum() / mask.sum().clamp(min=1)


def reliable_entropy(logits: Tensor, margin: float) -> tuple[Tensor, Tensor]:
    """Mean entropy of the predictions whose entropy is below a share of the largest one, and which they are."""
    losses = entropy(logits)
    reliable = losses.detach() < largest_entropy(logits.shape[1], margin)
    return masked_mean(losses, reliable), reliable


def hard_pixel_loss(logits: Tensor, taught: Tensor) -> tuple[Tensor, Tensor]:
    """Mean cross-entropy with the taught classes over the pixels where it is not small, and which they are."""
    losses = F.cross_entropy(logits.float(), taught.argmax(1), reduction="none")
    hard = losses.detach() >= EASY
    return masked_mean(losses, hard), hard
