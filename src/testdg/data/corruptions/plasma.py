"""Clouds by the diamond-square algorithm."""

import torch
from torch import Tensor

from testdg.data.corruptions.generator import ImageNoise


def plasma(noise: ImageNoise, side: int, decay: float) -> Tensor:
    """Grow a periodic cloud, (N, side, side) in [0, 1], by the diamond-square algorithm; side is a power of two."""
    cloud = torch.zeros(len(noise), side, side)
    step, wobble = side, 100.0
    while step >= 2:
        _refine(cloud, noise, step, wobble * wobble)
        step, wobble = step // 2, wobble / decay
    low, high = cloud.amin(dim=(1, 2), keepdim=True), cloud.amax(dim=(1, 2), keepdim=True)
    return (cloud - low) / (high - low).clamp(min=1e-12)


def _refine(cloud: Tensor, noise: ImageNoise, step: int, amplitude: float) -> None:
    """Halve the grid: first the centres of the squares, then the centres of their edges."""
    half = step // 2
    corners, centres = cloud[:, ::step, ::step], cloud[:, half::step, half::step]
    across, down = cloud[:, ::step, half::step], cloud[:, half::step, ::step]
    cells = corners.shape[1:]

    def settle(points: Tensor, neighbours: Tensor) -> None:
        points.copy_(neighbours * 0.25 + noise.uniform(*cells, low=-1.0, high=1.0) * amplitude)

    pairs = corners + corners.roll(-1, 1)
    settle(centres, pairs + pairs.roll(-1, 2))
    settle(across, centres + centres.roll(1, 1) + corners + corners.roll(-1, 2))
    settle(down, centres + centres.roll(1, 2) + corners + corners.roll(-1, 1))
