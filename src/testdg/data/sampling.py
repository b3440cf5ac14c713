"""In which order a stream shows its images: file order, domains mixed, classes bunched together or one by one."""

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

Array = np.ndarray[Any, np.dtype[Any]]
SamplingName = Literal["file", "mixed", "dirichlet", "sorted"]


@dataclass(frozen=True)
class Sampling:
    """The order of images. `concentration` is for "dirichlet" alone; `seed` is for it and "mixed"."""

    name: SamplingName = "file"
    concentration: float = 0.1
    seed: int = 0

    def order(self, labels: Tensor, number: int) -> Tensor:
        """The order of the images with these labels; `number` keys the random numbers."""
        random = np.random.default_rng([self.seed, number])
        if self.name == "file":
            return torch.arange(len(labels))
        if self.name == "sorted":
            return labels.sort(stable=True).indices
        if self.name == "mixed":
            return torch.from_numpy(random.permutation(len(labels)))
        return torch.from_numpy(_dirichlet(labels.numpy(), self.concentration, random))


def _dirichlet(labels: Array, concentration: float, random: np.random.Generator) -> Array:
    """Spread each class over as many slots as there are classes, in shares drawn from a Dirichlet distribution."""
    classes = np.unique(labels)
    slots: list[list[int]] = [[] for _ in classes]
    for label in classes:
        mine = random.permutation(np.flatnonzero(labels == label))
        shares = random.dirichlet(np.full(len(classes), concentration))
        cuts = np.round(shares.cumsum()[:-1] * len(mine)).astype(int)
        for slot, part in zip(slots, np.split(mine, cuts), strict=True):
            slot.extend(part.tolist())
    return np.concatenate([random.permutation(np.array(slot, dtype=np.int64)) for slot in slots])
