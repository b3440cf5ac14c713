"""Clean images under one corruption, made when they are first read and kept as uint8."""

from __future__ import annotations

import torch
from torch import Tensor

from testdg.data.corruptions import FrostTextures, corrupt_uint8

_CHUNK = 500  # images corrupted at a time: a stream starts, and seeks, without waiting for the whole domain


class CorruptedImages:
    """A domain made on the fly from clean images, uint8, (N, 3, H, W)."""

    def __init__(
        self, clean: Tensor, name: str, severity: int, *, seed: int = 0, frost: FrostTextures | None = None
    ) -> None:
        self.clean, self.name, self.severity, self.seed, self.frost = clean, name, severity, seed, frost
        self._chunks: dict[int, Tensor] = {}

    def __len__(self) -> int:
        """Number of images."""
        return len(self.clean)

    def read(self, start: int, stop: int) -> Tensor:
        """Images `start` to `stop`, corrupted."""
        first, last = start // _CHUNK, (stop - 1) // _CHUNK
        made = torch.cat([self._chunk(number) for number in range(first, last + 1)])
        return made[start - first * _CHUNK : stop - first * _CHUNK]

    def _chunk(self, number: int) -> Tensor:
        if number not in self._chunks:
            indices = range(number * _CHUNK, min((number + 1) * _CHUNK, len(self.clean)))
            self._chunks[number] = corrupt_uint8(
                self.clean[indices.start : indices.stop],
                self.name,
                self.severity,
                indices=indices,
                seed=self.seed,
                parameters="cifar",
                frost=self.frost,
            )
        return self._chunks[number]
