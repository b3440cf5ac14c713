"""Domain-invariant learning (section 3.3 of the paper): extractor, discriminator, and the losses of the two steps."""

from __future__ import annotations

import math
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Generator, Tensor, nn

from testdg.methods.testdg.memory import NONE, Embedded

PRESENT = 0.003
"""Share of a picture above which a class is there."""

Pairing = Literal["random", "sorted"]


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


def class_features(features: Tensor, logits: Tensor) -> Tensor:
    """What the extractor reads of each class of each image: the mean of its features, by probability; (B * C, D)."""
    shares = _class_shares(logits, features)
    means = shares @ features.float().flatten(2).transpose(1, 2) / shares.sum(2, keepdim=True).clamp(min=1e-6)
    return means.flatten(0, 1)


def present_classes(features: Tensor, logits: Tensor) -> Tensor:
    """The class of each row of `class_features`; `NONE` where the image hardly shows it."""
    present = _class_shares(logits, features).mean(2) > PRESENT
    classes = torch.arange(present.shape[1], device=present.device)
    return torch.where(present, classes, NONE).flatten()


def _class_shares(logits: Tensor, features: Tensor) -> Tensor:
    """Probability of each class where each feature lies: (B, C, places)."""
    return F.adaptive_avg_pool2d(logits.detach().float().softmax(1), features.shape[2:]).flatten(2)


def discrimination_loss(current: Tensor, reference: Tensor) -> Tensor:
    """Equation 5 on discriminator logits: current embeddings are 1, prototypes are 0 (mean over each set, halved)."""
    ones = F.binary_cross_entropy_with_logits(current, torch.ones_like(current))
    zeros = F.binary_cross_entropy_with_logits(reference, torch.zeros_like(reference))
    return (ones + zeros) / 2


def domain_accuracy(current: Tensor, reference: Tensor) -> Tensor:
    """Share of embeddings that the discriminator puts on the right side, each set with the same weight."""
    return ((current > 0).float().mean() + (reference <= 0).float().mean()) / 2


def invariance_loss(current: Tensor, prototypes: Tensor, pairing: Pairing, generator: Generator) -> Tensor:
    """Equation 6: L1 distance between paired embeddings and prototypes (mean over pairs and dimensions).

    `random` pairs as the paper does. `sorted` pairs each dimension by rank, which makes the loss the Wasserstein
    distance between the marginals: it matches the two sets without pulling every embedding to their middle. Of sets
    that are not equally large, the same quantiles are paired; a single embedding is paired with the medians.
    """
    if pairing == "random":
        return (current - prototypes[_cycled(len(current), len(prototypes), generator)]).abs().mean()
    ranks = (torch.arange(len(current), device=current.device) + 0.5) * (len(prototypes) / len(current)) - 0.5
    ranks = ranks.clamp(0, len(prototypes) - 1)
    low, share = ranks.floor().long(), ranks.frac()[:, None]
    ordered = prototypes.sort(0).values
    target = ordered[low] * (1 - share) + ordered[(low + 1).clamp(max=len(prototypes) - 1)] * share
    return (current.sort(0).values - target).abs().mean()


def ranked_invariance_loss(current: Embedded, prototypes: Embedded, earlier: Embedded) -> Tensor:
    """Equation 6 with pairs of the same kind and rank, for batches that are too small to be sorted by themselves.

    The rank of an embedding is taken, in each dimension, among all of its kind that the domain has shown so far: the
    `earlier` ones and the batch. So an unusual image is paired with unusual prototypes instead of being pulled to their
    middle, and what is rare in one domain and frequent in the other is not taken for a difference of the domains.
    """
    x, kinds = current
    domain, domain_kinds = torch.cat([earlier.embeddings, x.detach()]), torch.cat([earlier.kinds, kinds])
    alike = kinds[:, None] == domain_kinds
    below = ((domain < x.detach()[:, None]) & alike[..., None]).sum(1)
    share = (below + 0.5) / alike.sum(1, keepdim=True)
    alike = kinds[:, None] == prototypes.kinds
    count = alike.sum(1, keepdim=True)
    ordered = torch.where(alike[..., None], prototypes.embeddings, torch.inf).sort(1).values  # (n, prototypes, D)
    last = (count - 1).clamp(min=0)
    rank = torch.minimum((share * count - 0.5).clamp(min=0), last)
    low, part = rank.floor().long(), rank.frac().to(x.dtype)
    bounds = (ordered.gather(1, place[:, None])[:, 0] for place in (low, torch.minimum(low + 1, last)))
    target = torch.lerp(*bounds, part)
    paired = ((kinds != NONE) & (count[:, 0] > 0))[:, None]
    gaps = (x - torch.where(paired, target, x.detach())).abs()
    return gaps.sum() / (paired.sum() * x.shape[1]).clamp(min=1)


def mean_invariance_loss(current: Embedded, prototypes: Embedded, earlier: Embedded) -> Tensor:
    """L1 distance between the means of the domain so far and of the prototypes, kind by kind.

    The gradient is that of a domain that moves as a whole with its newest embeddings.
    """
    x, kinds = current
    own, _ = _means(kinds, Embedded(torch.cat([earlier.embeddings, x.detach()]), torch.cat([earlier.kinds, kinds])))
    target, count = _means(kinds, prototypes)
    paired = ((kinds != NONE) & (count > 0))[:, None]
    gaps = (own + x - x.detach() - target).abs().where(paired, 0)
    return gaps.sum() / (paired.sum() * x.shape[1]).clamp(min=1)


def _means(kinds: Tensor, among: Embedded) -> tuple[Tensor, Tensor]:
    """The mean of the embeddings of each of these kinds, and their number."""
    alike = (kinds[:, None] == among.kinds).to(among.embeddings.dtype)
    count = alike.sum(1)
    return alike @ among.embeddings / count.clamp(min=1)[:, None], count


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


def diversity_loss(student: Tensor) -> Tensor:
    """Negative entropy of the mean prediction, up to a constant: zero when all classes are equally frequent."""
    log_p = student.float().log_softmax(1).movedim(1, -1).flatten(0, -2)  # (images or pixels, C)
    mean = log_p.logsumexp(0) - math.log(len(log_p))
    return (mean.exp() * mean).sum(0) + math.log(log_p.shape[1])
