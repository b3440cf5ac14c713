"""Clean pictures in one condition, made when they are read."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from testdg.data.corrupted import CorruptedImages, PixelCache
from testdg.data.stream import ImageSource
from testdg.data.weather.apply import weather
from testdg.data.weather.geometry import Geometry


class WeatherImages(CorruptedImages):
    """A domain made on the fly; the geometry is guessed where it is not given."""

    def __init__(
        self,
        clean: Tensor | ImageSource,
        name: str,
        severity: int,
        *,
        seed: int = 0,
        geometry: Geometry | None = None,
        positions: Sequence[int] | None = None,
        cache: PixelCache | None = None,
    ) -> None:
        super().__init__(clean, name, severity, seed=seed, positions=positions, cache=cache)
        self.geometry = geometry

    def _make(self, indices: list[int]) -> Tensor:
        positions = [self.positions[index] for index in indices]
        known = None if self.geometry is None else self.geometry.take(indices)
        return weather(
            self._clean(indices), self.name, self.severity, indices=positions, seed=self.seed, geometry=known
        )
