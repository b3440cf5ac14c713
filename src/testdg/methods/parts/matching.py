"""How far one set of points is from another, dimension by dimension."""

from __future__ import annotations

import torch
from torch import Tensor


def sorted_distance(current: Tensor, reference: Tensor) -> Tensor:
    """L1 distance between values of the same rank, each dimension by itself (mean over points and dimensions).

    That is the Wasserstein distance between the marginals: it matches the two sets without pulling every point to
    their middle. Of sets that are not equally large, the same quantiles are paired; a single point is paired with the
    medians.
    """
    ordered = current.sort(0).values
    ranks = (torch.arange(len(current), device=current.device)[:, None] + 0.5) * (len(reference) / len(current)) - 0.5
    return (ordered - _at_ranks(reference, ranks.expand_as(ordered))).abs().mean()


def _at_ranks(points: Tensor, ranks: Tensor) -> Tensor:
    """Each dimension's values at these ranks, which may lie between two points."""
    ranks = ranks.clamp(0, len(points) - 1)
    low, share = ranks.floor().long(), ranks.frac()
    points = points.sort(0).values
    return points.gather(0, low) * (1 - share) + points.gather(0, (low + 1).clamp(max=len(points) - 1)) * share
