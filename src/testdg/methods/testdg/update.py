"""Domain prototype update (section 3.4 of the paper): prototypes follow the model as it moves."""

from collections.abc import Callable

import torch
from torch import Tensor

from testdg.methods.testdg.selection import median_gamma, mmd2, squared_distances

Distance = Callable[[Tensor, Tensor], Tensor]


def chamfer(x: Tensor, y: Tensor) -> Tensor:
    """Equation 8: sums of squared distances to the nearest point of the other set, both ways."""
    pairs = squared_distances(x, y)
    return pairs.min(1).values.sum() + pairs.min(0).values.sum()


def hausdorff(x: Tensor, y: Tensor) -> Tensor:
    """Largest distance from a point of one set to the other set."""
    nearest = squared_distances(x, y).clamp(min=1e-12).sqrt()
    return torch.maximum(nearest.min(1).values.max(), nearest.min(0).values.max())


def mmd_distance(x: Tensor, y: Tensor) -> Tensor:
    """Squared MMD with the width of the kernel taken from the prototypes."""
    return mmd2(x, y, median_gamma(y.detach()))


DISTANCES: dict[str, Distance] = {"chamfer": chamfer, "mmd": mmd_distance, "hausdorff": hausdorff}


def update_loss(distance: Distance, before: Tensor, after: Tensor, previous: Tensor, prototypes: Tensor) -> Tensor:
    """Equation 7: how much the distance between embeddings and prototypes changed when the model moved."""
    return (distance(before, previous).detach() - distance(after, prototypes)).abs()


def update_prototypes(
    distance: Distance, before: Tensor, after: Tensor, previous: Tensor, learning_rate: float, steps: int
) -> Tensor:
    """Move prototypes, from where they are, by steps of Adam down equation 7; a step that raises it is left out.

    `before` and `after` are the embeddings of one batch before and after the model moved.
    """
    prototypes = previous.detach().clone()
    first, second = torch.zeros_like(prototypes), torch.zeros_like(prototypes)
    with torch.enable_grad(), torch.autocast(previous.device.type, enabled=False):
        for t in range(1, steps + 1):
            prototypes.requires_grad_(True)
            loss = update_loss(distance, before, after, previous, prototypes)
            (gradient,) = torch.autograd.grad(loss, prototypes)
            first = 0.9 * first + 0.1 * gradient
            second = 0.999 * second + 0.001 * gradient.square()
            move = (first / (1 - 0.9**t)) / ((second / (1 - 0.999**t)).sqrt() + 1e-8)
            with torch.no_grad():
                moved = prototypes - learning_rate * move
                better = update_loss(distance, before, after, previous, moved) < loss
                prototypes = torch.where(better, moved, prototypes).detach()
    return prototypes
