"""Random numbers keyed by image, independent of batch and device, and clouds that are made of them."""

import hashlib
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor


class ImageNoise:
    """Independent random streams, one for each image, keyed by (seed, corruption, severity, image index).

    All numbers are drawn on the CPU and returned with one row per image: a row depends on its key and on the draws
    before it, never on other images.
    """

    def __init__(self, seed: int, corruption: str, severity: int, indices: Sequence[int]) -> None:
        self.count = len(indices)
        keys = [f"{int(seed)}/{corruption}/{int(severity)}/{int(index)}" for index in indices]
        self._streams = [_stream_of(key) for key in keys]

    def normal(self, *shape: int, mean: float = 0.0, scale: float = 1.0) -> Tensor:
        drawn = self._rows(shape, lambda stream, size: stream.standard_normal(size, dtype=np.float32))
        return drawn.mul_(scale).add_(mean)

    def uniform(self, *shape: int, low: float = 0.0, high: float = 1.0) -> Tensor:
        """Draw evenly from [low, high), as float32."""
        drawn = self._rows(shape, lambda stream, size: stream.random(size, dtype=np.float32))
        return drawn.mul_(high - low).add_(low)

    def integers(self, *shape: int, low: int, high: int) -> Tensor:
        """Draw evenly from the whole numbers low, ..., high - 1, as int64."""
        return self._rows(shape, lambda stream, size: stream.integers(low, high, size, dtype=np.int32)).long()

    def poisson(self, rate: Tensor) -> Tensor:
        """Draw counts with the given means, one row per image, as float32."""
        rates = iter(rate.to("cpu", torch.float64).flatten(1).numpy())
        return self._rows(rate.shape[1:], lambda stream, _: stream.poisson(next(rates)).astype(np.float32))

    def _rows(self, shape: Sequence[int], draw: Callable[[np.random.Generator, int], Any]) -> Tensor:
        rows = [draw(stream, math.prod(shape)) for stream in self._streams]
        return torch.from_numpy(np.stack(rows)).view(len(rows), *shape)


def _stream_of(key: str) -> np.random.Generator:
    """The random stream of a key, the same on every machine."""
    digest = hashlib.blake2b(key.encode(), digest_size=16).digest()
    return np.random.Generator(np.random.Philox(key=int.from_bytes(digest, "little")))


def plasma(noise: ImageNoise, side: int, decay: float) -> Tensor:
    """Grow a periodic cloud, (N, side, side) in [0, 1], by the diamond-square algorithm; side is a power of two."""
    cloud = torch.zeros(noise.count, side, side)
    step, wobble = side, 100.0

    def settle(points: Tensor, neighbours: Tensor) -> None:
        shift = noise.uniform(*points.shape[1:], low=-1.0, high=1.0) * (wobble * wobble)
        points.copy_(neighbours * 0.25 + shift)

    # Halve the grid: first the centres of the squares, then the centres of their edges.
    while step >= 2:
        half = step // 2
        corners, centres = cloud[:, ::step, ::step], cloud[:, half::step, half::step]
        across, down = cloud[:, ::step, half::step], cloud[:, half::step, ::step]
        pairs = corners + corners.roll(-1, 1)
        settle(centres, pairs + pairs.roll(-1, 2))
        settle(across, centres + centres.roll(1, 1) + corners + corners.roll(-1, 2))
        settle(down, centres + centres.roll(1, 2) + corners + corners.roll(-1, 1))
        step, wobble = half, wobble / decay
    low, high = cloud.amin(dim=(1, 2), keepdim=True), cloud.amax(dim=(1, 2), keepdim=True)
    return (cloud - low) / (high - low).clamp(min=1e-12)
