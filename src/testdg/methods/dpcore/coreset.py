"""Prompts of the domains so far, each with the mean and deviation of the features that it belongs to."""

import torch
from torch import Tensor, nn


def distance(one: Tensor, other: Tensor, weight: float = 1.0) -> Tensor:
    """Distance of means plus the weighted distance of deviations, (..., 2, D) to (...)."""
    gaps: Tensor = torch.linalg.vector_norm(one - other, dim=-1)
    return gaps[..., 0] + weight * gaps[..., 1]


class Coreset(nn.Module):
    """A list of elements in a fixed number of places; the first `count` are taken."""

    statistics: Tensor
    prompts: Tensor

    def __init__(self, places: int, features: int, prompts: torch.Size, device: torch.device) -> None:
        super().__init__()
        self.count = 0
        self.register_buffer("statistics", torch.zeros(places, 2, features, device=device))
        self.register_buffer("prompts", torch.zeros(places, *prompts, device=device))

    @property
    def full(self) -> bool:
        """Whether all places are taken."""
        return self.count == len(self.prompts)

    def weigh(self, found: Tensor, temperature: float, weight: float) -> Tensor:
        """Shares of the elements for a batch with such moments, (K,): the nearer, the more."""
        return (-distance(found, self.statistics[: self.count], weight) / temperature).softmax(0)

    def mix(self, shares: Tensor) -> Tensor:
        """The mean of the prompts by their shares, (P, D)."""
        return (shares[:, None, None] * self.prompts[: self.count]).sum(0)

    def add(self, found: Tensor, prompt: Tensor) -> None:
        """Take a new element in."""
        self.statistics[self.count], self.prompts[self.count] = found, prompt
        self.count += 1

    def refine(self, shares: Tensor, found: Tensor, prompt: Tensor, rate: float) -> None:
        """Move each element by its share; deviations only grow."""
        gaps = found - self.statistics[: self.count]
        gaps[:, 1].clamp_(min=0)
        self.statistics[: self.count] += rate * shares[:, None, None] * gaps
        self.prompts[: self.count] += rate * shares[:, None, None] * (prompt - self.prompts[: self.count])

    def get_extra_state(self) -> int:
        """Number of elements, for the state."""
        return self.count

    def set_extra_state(self, state: int) -> None:
        """Take that number back."""
        if not 0 <= state <= len(self.prompts):
            raise ValueError(f"{state} elements in {len(self.prompts)} places")
        self.count = int(state)
