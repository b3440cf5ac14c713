"""CMA-ES: candidates from a normal distribution that learns its mean, size and covariance from their ranks.

After Hansen, *The CMA Evolution Strategy: A Tutorial* (arXiv 1604.00772), with weights for the better half alone and
two-point adaptation of the size. All state is tensors and a number, so that it is saved and restored exactly.
"""

import math

import torch
from torch import Generator, Tensor

from testdg.methods.parts.plain_state import PlainState

SMOOTHING = 0.3
"""Share of the newest answer to whether the last move of the mean should have been longer."""


def default_population(size: int) -> int:
    """Candidates of a generation in so many dimensions."""
    return 4 + int(3 * math.log(size))


def recombination_weights(population: int) -> Tensor:
    """Weights of the better half, from the best on; they sum to 1."""
    ranks = torch.arange(1, population // 2 + 1, dtype=torch.float64)
    weights = math.log((population + 1) / 2) - ranks.log()
    return weights / weights.sum()


class Evolution(PlainState):
    """The distribution of candidates: normal, with `mean` and `sigma`² `covariance` = (basis scales)²."""

    plain = ("waited",)
    uncopied = ("covariance", "basis")  # replaced, never written in place
    weights: Tensor
    mean: Tensor
    sigma: Tensor
    path: Tensor
    move: Tensor
    longer: Tensor
    covariance: Tensor
    basis: Tensor
    scales: Tensor

    def __init__(self, size: int, population: int | None = None, device: torch.device | None = None) -> None:
        super().__init__()
        self.population = population or default_population(size)
        weights = recombination_weights(self.population)
        self.effective = float(1 / weights.square().sum())
        self.register_buffer("weights", weights.float().to(device), persistent=False)
        ratio = self.effective / size
        self.path_share = (4 + ratio) / (size + 4 + 2 * ratio)
        self.rank_one = 2 / ((size + 1.3) ** 2 + self.effective)
        rank_many = 2 * (self.effective - 2 + 1 / self.effective) / ((size + 2) ** 2 + self.effective)
        self.rank_many = min(1 - self.rank_one, rank_many)
        self.patience = 1 / ((self.rank_one + self.rank_many) * size * 10)
        self.waited = 0  # generations since the basis was computed
        for name in ("mean", "path", "move"):
            self.register_buffer(name, torch.zeros(size, device=device))
        for name in ("covariance", "basis"):
            self.register_buffer(name, torch.eye(size, device=device))
        self.register_buffer("scales", torch.ones(size, device=device))
        self.register_buffer("sigma", torch.ones((), device=device))
        self.register_buffer("longer", torch.zeros((), device=device))

    def ask(self, generator: Generator) -> Tensor:
        """Candidates (population, size); the first two lie along the last move of the mean, forwards and backwards."""
        normal = torch.randn(self.population, len(self.mean), generator=generator, device=self.mean.device)
        steps = (normal * self.scales) @ self.basis.T
        along = self.move * normal[0].norm() / self.lengths(self.move[None]).clamp(min=1e-12)
        moved = self.move.any()
        steps[0], steps[1] = torch.where(moved, along, steps[0]), torch.where(moved, -along, steps[1])
        return self.mean + self.sigma * steps

    def lengths(self, steps: Tensor) -> Tensor:
        """Lengths of steps (K, size) in standard deviations of the distribution."""
        return (steps @ self.basis / self.scales).square().sum(1).sqrt()

    def tell(self, candidates: Tensor, values: Tensor) -> None:
        """Learn from the values of candidates, small ones being good; those beyond the population may be anyone's."""
        size, given = len(self.mean), len(candidates)
        steps = (candidates - self.mean) / self.sigma
        reach = (math.sqrt(size) / self.lengths(steps).clamp(min=1e-12)).clamp(max=1)
        reach[: self.population] = 1  # only strangers are shortened
        order = values.argsort(stable=True)
        best = (steps * reach[:, None])[order[: len(self.weights)]]
        mean_step = self.weights @ best
        rank = order.argsort()
        better = (rank[1] - rank[0]) / (given - 1) * self.move.any()
        self._learn_covariance(best, mean_step)
        self.mean += self.sigma * mean_step
        self.move.copy_(mean_step)
        self.longer.lerp_(better, SMOOTHING)
        self.sigma *= (self.longer / math.sqrt(size)).exp()

    def _learn_covariance(self, best: Tensor, mean_step: Tensor) -> None:
        share = self.path_share
        path = (1 - share) * self.path + math.sqrt(share * (2 - share) * self.effective) * mean_step
        many = (best * self.weights[:, None]).T @ best
        kept = (1 - self.rank_one - self.rank_many) * self.covariance
        covariance = kept + self.rank_one * path.outer(path) + self.rank_many * many
        if self.waited + 1 > self.patience:
            squares, basis = torch.linalg.eigh(covariance)
            self.basis, self.waited = basis, 0
            self.scales.copy_(squares.clamp(min=1e-20).sqrt())
        else:
            self.waited += 1
        self.covariance = covariance
        self.path.copy_(path)
