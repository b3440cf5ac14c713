"""Random numbers that belong to an image, not to a batch or a device."""

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
        self._streams = [_stream(f"{int(seed)}/{corruption}/{int(severity)}/{int(index)}") for index in indices]

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


def _stream(key: str) -> np.random.Generator:
    """Make the counter-based generator of a key; the hash is the same on every machine."""
    digest = hashlib.blake2b(key.encode(), digest_size=16).digest()
    return np.random.Generator(np.random.Philox(key=int.from_bytes(digest, "little")))
