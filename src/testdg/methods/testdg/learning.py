"""Domain-invariant learning (section 3.3 of the paper): extractor, discriminator, and the losses of the two steps."""

from collections.abc import Sequence
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Generator, Tensor, nn


def mlp(widths: Sequence[int], activation: type[nn.Module], generator: Generator) -> nn.Sequential:
    """Linear layers of these widths with an activation between them, drawn from the adapter's own generator."""
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise(widths):
        layers += [activation()] if layers else []
        layers.append(nn.Linear(inputs, outputs, device=generator.device))
        with torch.no_grad():
            layers[-1].get_parameter("weight").uniform_(-(inputs**-0.5), inputs**-0.5, generator=generator)
            layers[-1].get_parameter("bias").zero_()
    return nn.Sequential(*layers)


def domain_features(features: Tensor, grid: int = 1) -> Tensor:
    """What the extractor reads: a vector per image, or per cell of a grid where features are maps."""
    if features.ndim == 2:
        return features.float()
    return F.adaptive_avg_pool2d(features.float(), grid).flatten(2).transpose(1, 2).flatten(0, 1)


def discrimination_loss(current: Tensor, reference: Tensor) -> Tensor:
    """Equation 5 on discriminator logits: current embeddings are 1, prototypes are 0 (mean over each set, halved)."""
    ones = F.binary_cross_entropy_with_logits(current, torch.ones_like(current))
    zeros = F.binary_cross_entropy_with_logits(reference, torch.zeros_like(reference))
    return (ones + zeros) / 2


def domain_accuracy(current: Tensor, reference: Tensor) -> Tensor:
    """Share of embeddings that the discriminator puts on the right side, each set with the same weight."""
    return ((current > 0).float().mean() + (reference <= 0).float().mean()) / 2


def invariance_loss(current: Tensor, prototypes: Tensor, generator: Generator) -> Tensor:
    """Equation 6: L1 distance between random pairs (mean over pairs and dimensions); few prototypes go round."""
    order = torch.rand(len(prototypes), generator=generator, device=generator.device).argsort()
    pairs = order[torch.arange(len(current), device=order.device) % len(order)]
    return (current - prototypes[pairs]).abs().mean()


def self_training_loss(student: Tensor, teacher: Tensor, *, symmetric: bool = False) -> Tensor:
    """Equation 4: cross-entropy between the prediction and the teacher's soft label (without the constant 1/C).

    `symmetric` averages it with the cross-entropy the other way round.
    """
    log_s, log_t = student.float().log_softmax(1), teacher.float().log_softmax(1)
    losses = -(log_t.exp() * log_s).sum(1)
    if symmetric:
        losses = 0.5 * losses - 0.5 * (log_s.exp() * log_t).sum(1)
    return losses.mean()
