"""Domain-invariant learning (section 3.3 of the paper): extractor, discriminator, and the losses of the two steps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Generator, Tensor, nn

from testdg.methods.parts.matching import at_ranks, sorted_distance

Pairing = Literal["random", "sorted", "ranked"]


def extractor(inputs: int, hidden: int, width: int, generator: Generator) -> nn.Sequential:
    """Domain information extractor: encoder features to domain embeddings."""
    return _seeded(nn.Sequential(nn.Linear(inputs, hidden), nn.ReLU(), nn.Linear(hidden, width)), generator)


def discriminator(width: int, hidden: int, generator: Generator) -> nn.Sequential:
    """Domain discriminator: does an embedding belong to the current domain? A logit each."""
    return _seeded(nn.Sequential(nn.Linear(width, hidden), nn.GELU(), nn.Linear(hidden, 1)), generator)


def _seeded(network: nn.Sequential, generator: Generator) -> nn.Sequential:
    """Draw the weights from the adapter's own generator."""
    network = network.to(generator.device)
    for layer in network:
        if isinstance(layer, nn.Linear):
            bound = layer.in_features**-0.5
            with torch.no_grad():
                layer.weight.uniform_(-bound, bound, generator=generator)
                layer.bias.zero_()
    return network


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


def invariance_loss(
    current: Tensor, prototypes: Tensor, pairing: Pairing, generator: Generator, earlier: Tensor | None = None
) -> Tensor:
    """Equation 6: L1 distance between paired embeddings and prototypes (mean over pairs and dimensions).

    `random` pairs as the paper does. `sorted` pairs each dimension by rank, which makes the loss the Wasserstein
    distance between the marginals: it matches the two sets without pulling every embedding to their middle. Of sets
    that are not equally large, the same quantiles are paired; a single embedding is paired with the medians. `ranked`
    takes the rank among the `earlier` embeddings of the domain too (rows of infinity are absent), so that a small batch
    of unusual images is paired with unusual prototypes.
    """
    if pairing == "random":
        return (current - prototypes[_cycled(len(current), len(prototypes), generator)]).abs().mean()
    if pairing == "sorted" or earlier is None:
        return sorted_distance(current, prototypes)
    ordered = current.sort(0).values
    below = torch.arange(len(current), device=current.device)[:, None] + (earlier < ordered.detach()[:, None]).sum(1)
    ranks = (below + 0.5) * (len(prototypes) / (len(current) + earlier.isfinite().all(1).sum())) - 0.5
    return (ordered - at_ranks(prototypes, ranks)).abs().mean()


def bounded_sum(
    gradients: Sequence[Tensor | None], pulls: Sequence[Tensor | None], share: float
) -> list[Tensor | None]:
    """Gradients of L_self plus those of L_inv, none of which is longer than a share of what it is added to.

    Weight by weight, because L_inv is several times louder in the last layers than in the first. Without a bound, long
    streams lost their rare classes.
    """
    total = list(gradients)
    for place, (gradient, pull) in enumerate(zip(gradients, pulls, strict=True)):
        if gradient is not None and pull is not None:
            room = share * gradient.norm() / pull.norm().clamp(min=1e-12)
            total[place] = gradient + room.clamp(max=1) * pull
    return total


def _cycled(count: int, size: int, generator: Generator) -> Tensor:
    """`count` indices that go round a random permutation of `size`."""
    order = torch.rand(size, generator=generator, device=generator.device).argsort()
    return order[torch.arange(count, device=generator.device) % size]


def self_training_loss(
    student: Tensor,
    teacher: Tensor,
    *,
    symmetric: bool = False,
    weights: Tensor | None = None,
    temperature: float = 1.0,
) -> Tensor:
    """Equation 4: cross-entropy between the prediction and the teacher's soft label (without the constant 1/C).

    `symmetric` averages it with the cross-entropy the other way round; `weights` weigh the images; a `temperature`
    below one sharpens the label.
    """
    log_s, log_t = student.float().log_softmax(1), (teacher.float() / temperature).log_softmax(1)
    losses = -(log_t.exp() * log_s).sum(1)
    if symmetric:
        losses = 0.5 * losses - 0.5 * (log_s.exp() * log_t).sum(1)
    return losses.mean() if weights is None else (losses * weights).mean()
