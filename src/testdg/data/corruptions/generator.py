"""Random numbers that belong to an image, not to a batch or a device; and clouds made of them."""

import hashlib
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor


class ImageNoise:
    """Independent random streams, one for each image, keyed by (seed, corruption, severity, image index).

    All numbers are drawn on the CPU and come back with one row per image: a row depends on its key and on
    the draws before it, never on the other images.
    """

    def __init__(self, seed: int, corruption: str, severity: int, indices: Sequence[int]) -> None:
        keys = [f"{int(seed)}/{corruption}/{int(severity)}/{int(index)}" for index in indices]
        digests = [hashlib.blake2b(key.encode(), digest_size=16).digest() for key in keys]  # the same on every machine
        self._streams = [np.random.Generator(np.random.Philox(key=int.from_bytes(d, "little"))) for d in digests]

    def __len__(self) -> int:
        return len(self._streams)

    def normal(self, *shape: int, mean: float = 0.0, scale: float = 1.0) -> Tensor:
        """Draw from the normal distribution, as float32."""
        drawn = self._rows(shape, np.float32, lambda g, row: g.standard_normal(out=row, dtype=np.float32))
        return drawn.mul_(scale).add_(mean)

    def uniform(self, *shape: int, low: float = 0.0, high: float = 1.0) -> Tensor:
        """Draw evenly from [low, high), as float32."""
        drawn = self._rows(shape, np.float32, lambda g, row: g.random(out=row, dtype=np.float32))
        return drawn.mul_(high - low).add_(low)

    def integers(self, *shape: int, low: int, high: int) -> Tensor:
        """Draw evenly from the whole numbers low, ..., high - 1, as int64."""

        def fill(stream: np.random.Generator, row: Any) -> None:
            row[:] = stream.integers(low, high, size=row.size, dtype=np.int32)

        return self._rows(shape, np.int64, fill)

    def poisson(self, rate: Tensor) -> Tensor:
        """Draw counts with the given means, one row per image, as float32."""
        rates = iter(rate.to("cpu", torch.float64).flatten(1).numpy())

        def fill(stream: np.random.Generator, row: Any) -> None:
            row[:] = stream.poisson(next(rates))

        return self._rows(tuple(rate.shape[1:]), np.float32, fill)

    def _rows(self, shape: tuple[int, ...], dtype: Any, fill: Callable[[np.random.Generator, Any], object]) -> Tensor:
        """Let every image's stream fill its row."""
        rows = np.empty((len(self), math.prod(shape)), dtype)
        for stream, row in zip(self._streams, rows, strict=True):
            fill(stream, row)
        return torch.from_numpy(rows).view(len(self), *shape)


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
