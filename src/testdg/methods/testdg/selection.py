"""Domain prototype selection (section 3.2 of the paper): RBF kernel, squared MMD, score J, greedy maximum."""

from collections.abc import Callable

import torch
from torch import Generator, Tensor

CHUNK = 4096
"""Rows of the kernel matrix that are in memory at a time."""


def squared_distances(x: Tensor, y: Tensor) -> Tensor:
    """||x_i - y_j||^2 for every pair, (n, m), in full precision even under autocast: large numbers cancel."""
    with torch.autocast(x.device.type, enabled=False):
        return (x.square().sum(1)[:, None] + y.square().sum(1)[None] - 2 * x @ y.T).clamp(min=0)


def rbf(x: Tensor, y: Tensor, gamma: float | Tensor) -> Tensor:
    """k(x, y) = exp(-gamma ||x - y||^2), (n, m)."""
    return (-gamma * squared_distances(x, y)).exp()


def median_gamma(x: Tensor, most: int = 512) -> Tensor:
    """Median heuristic: one over the median squared distance between points (an even subset of many)."""
    x = x[:: max(1, len(x) // most)]
    upper = torch.triu_indices(len(x), len(x), 1, device=x.device)
    if upper.shape[1] == 0:
        return x.new_ones(())
    median = squared_distances(x, x)[upper[0], upper[1]].median()
    return torch.where(median > 0, 1 / median.clamp(min=1e-12), torch.ones_like(median))


def mmd2(x: Tensor, y: Tensor, gamma: float | Tensor) -> Tensor:
    """Equation 1: squared maximum mean discrepancy between two sets (biased, diagonals included)."""
    return rbf(x, x, gamma).mean() + rbf(y, y, gamma).mean() - 2 * rbf(x, y, gamma).mean()


def score(x: Tensor, chosen: Tensor, gamma: float | Tensor) -> Tensor:
    """Equation 2: J of the prototypes x[chosen] for the set x."""
    prototypes = x[chosen]
    return 2 * rbf(x, prototypes, gamma).mean() - rbf(prototypes, prototypes, gamma).mean()


def selection_mmd2(x: Tensor, chosen: Tensor, gamma: float | None) -> Tensor:
    """Squared MMD between the set x (an even subset of it, if large) and the prototypes x[chosen]."""
    prototypes, x = x[chosen], x[:: -(-len(x) // CHUNK)]
    return mmd2(x, prototypes, median_gamma(x) if gamma is None else gamma)


def greedy(column_means: Tensor, column: Callable[[Tensor], Tensor], count: int) -> Tensor:
    """Equation 3 by exact greedy steps, for a kernel with a constant diagonal: indices of `count` prototypes.

    J(S + c) is largest where 2 mean_i K_ic - (2 sum_{j in S} K_jc + K_cc) / (|S| + 1) is, so that a step needs one
    column of the kernel matrix: O(n) for each prototype once the column means are known. `column(c)` gives it with
    infinity at c itself, which keeps c from being chosen again. Nothing leaves the device.
    """
    gain = 2 * column_means
    similar = torch.zeros_like(gain)  # sum over the chosen of K_jc
    chosen = []
    for t in range(count):
        best = torch.sub(gain, similar, alpha=2 / (t + 1)).argmax()
        similar += column(best)
        chosen.append(best)
    return torch.stack(chosen)


def select_mmd(x: Tensor, count: int, gamma: float | Tensor | None = None) -> Tensor:
    """Choose the prototypes that represent a set best; without a gamma, by the median heuristic.

    Up to `CHUNK` points the kernel matrix is stored; beyond that its columns are computed when they are needed.
    """
    gamma = median_gamma(x) if gamma is None else gamma
    count = min(count, len(x))
    if len(x) <= CHUNK:
        kernel = rbf(x, x, gamma)
        means = kernel.mean(0)
        kernel.fill_diagonal_(torch.inf)
        return greedy(means, lambda best: kernel.index_select(0, best).view(-1), count)
    means = torch.cat([rbf(rows, x, gamma).mean(1) for rows in torch.split(x, CHUNK)])

    def column(best: Tensor) -> Tensor:
        return rbf(x, x.index_select(0, best), gamma).view(-1).index_fill_(0, best, torch.inf)

    return greedy(means, column, count)


def select(strategy: str, x: Tensor, count: int, gamma: float | None, generator: Generator) -> Tensor:
    """Choose prototypes from a queue (oldest first) by a strategy: mmd, random, fifo or reservoir.

    A reservoir queue is already a uniform sample of its domain, so a random part of it is one too.
    """
    count = min(count, len(x))
    if strategy == "mmd":
        return select_mmd(x, count, gamma)
    if strategy == "fifo":
        return torch.arange(len(x) - count, len(x), device=x.device)
    return torch.randperm(len(x), generator=generator, device=x.device)[:count]
