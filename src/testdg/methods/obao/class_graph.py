"""Zhu et al.'s graph of class relations: how alike the mean features of the classes are."""

import torch
import torch.nn.functional as F
from torch import Tensor


def class_means(features: Tensor, labels: Tensor, kept: Tensor, classes: int) -> tuple[Tensor, Tensor]:
    """Mean of the kept features (M, D) of each class, (C, D), and how many there are of it."""
    members = F.one_hot(labels, classes).to(features.dtype) * kept[:, None]  # (M, C)
    counts = members.sum(0)
    return members.T @ features / counts.clamp(min=1)[:, None], counts


def relations(rows: Tensor) -> Tensor:
    """Cosine between all pairs of rows, (C, C)."""
    unit = F.normalize(rows.float(), dim=1)
    return unit @ unit.T


def relation_loss(source: Tensor, current: Tensor, present: Tensor) -> Tensor:
    """Minus the correlation, without centring, of two graphs over the classes that are present; 0 for less than two."""
    pairs = present[:, None] & present
    source, current = (torch.where(pairs, graph, 0.0) for graph in (source, current))
    alike = (source * current).sum() / (source.square().sum() * current.square().sum()).clamp(min=1e-12).sqrt()
    return torch.where(present.sum() > 1, -alike, 0.0)
