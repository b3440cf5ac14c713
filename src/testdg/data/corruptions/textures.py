"""Frost textures: photographs from a folder, or fern-like crystals on a cloudy pane, of the same strength."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from testdg.data.corruptions.filters import gaussian, mirror
from testdg.data.corruptions.generator import ImageNoise, plasma
from testdg.data.pictures import DATA_SET_SUFFIXES, read_image
from testdg.errors import UserError

_USED = 5  # the reference recipe has six photographs and draws from the first five
_HEIGHT, _WIDTH = 480, 640
_ARMS = 6
_BRANCH_ANGLE = np.pi / 3


class Pane(NamedTuple):
    """Strength of a texture: mean and deviation of red, green and blue, and the share of slow variation."""

    mean: tuple[float, float, float]
    deviation: tuple[float, float, float]
    cloudiness: float
    crystals: int
    length: float


_PANES: tuple[Pane, ...] = (
    Pane((77.5, 149.0, 165.7), (26.8, 16.4, 15.3), 0.50, 900, 26.0),
    Pane((200.8, 205.4, 214.5), (21.4, 22.1, 22.6), 0.27, 500, 40.0),
    Pane((200.8, 205.4, 214.5), (21.4, 22.1, 22.6), 0.27, 500, 40.0),
    Pane((138.0, 153.2, 165.6), (29.0, 29.0, 30.2), 0.20, 1400, 16.0),
    Pane((112.3, 123.3, 134.7), (44.3, 43.2, 41.6), 0.32, 600, 34.0),
)
"""The strengths of the five photographs that the reference recipe blends in."""


@dataclass(frozen=True, eq=False)
class FrostTextures:
    """Pictures of frost, (3, H, W) uint8 RGB each, and where they come from."""

    textures: tuple[Tensor, ...]
    description: str

    @classmethod
    def from_folder(cls, path: str | Path) -> FrostTextures:
        """Read the first five PNG or JPEG pictures of a folder, by name."""
        folder = Path(path)
        files = sorted(f for f in folder.glob("*") if f.suffix.lower() in DATA_SET_SUFFIXES)[:_USED]
        if not files:
            raise UserError(
                f"frost textures: no .png or .jpg file in {str(folder)!r}; name a folder of pictures", code="no-images"
            )
        return cls(tuple(read_image(file) for file in files), f"photographs from {folder.resolve().name}")

    @classmethod
    def procedural(cls) -> FrostTextures:
        """Grow five textures with the brightness, colour and contrast of the reference's photographs."""
        return cls(_grow_textures(), "procedural")

    def cut(self, noise: ImageNoise, height: int, width: int, *, scale: float) -> Tensor:
        """Cut a random piece of a random texture for each image, (N, 3, H, W) uint8."""
        small = [_thin(texture, scale) for texture in self.textures]
        choices = noise.integers(low=0, high=len(small)).tolist()
        places = noise.uniform(2).double().tolist()
        cuts = [_cut(small[choice], height, width, place) for choice, place in zip(choices, places, strict=True)]
        return torch.stack(cuts)


@cache
def _grow_textures() -> tuple[Tensor, ...]:
    """Grow all textures, (3, H, W) uint8; cached, since it takes half a second."""
    textures = []
    for number, pane in enumerate(_PANES):
        noise = ImageNoise(0, "frost texture", 0, [number])
        cloud = plasma(noise, 1024, decay=1.8)[:, None, :_HEIGHT, :_WIDTH]
        ice = gaussian(_crystals(noise, pane)[None, None], 0.7)
        slow, fast = _standardise(cloud), _standardise(ice)
        surface = slow * pane.cloudiness**0.5 + fast * (1 - pane.cloudiness) ** 0.5
        surface = _standardise(_standardise(surface).clamp(-2.5, 2.5))[0]
        mean, deviation = (torch.tensor(values)[:, None, None] for values in (pane.mean, pane.deviation))
        textures.append((surface * deviation + mean).round().clamp(0, 255).byte())
    return tuple(textures)


def _standardise(field: Tensor) -> Tensor:
    field = field.double()
    return (field - field.mean()) / field.std()


def _crystals(noise: ImageNoise, pane: Pane) -> Tensor:
    """Draw stars of feathered arms at random places, sizes and directions; brighter ones cover darker ones."""
    rows, columns, turn, size, light = (noise.uniform(5, pane.crystals)[0].double().numpy())[:, :, None]
    arms = 2 * np.pi * (turn + np.arange(_ARMS) / _ARMS)
    reach = pane.length * (0.3 + size * noise.uniform(pane.crystals, _ARMS)[0].double().numpy() * 2)
    along, aside, tilt = _feather()
    distance, branch = reach[..., None] * along, reach[..., None] * aside
    direction = arms[..., None] + tilt
    y = rows[..., None] * _HEIGHT + distance * np.sin(arms)[..., None] + branch * np.sin(direction)
    x = columns[..., None] * _WIDTH + distance * np.cos(arms)[..., None] + branch * np.cos(direction)
    glow = (0.3 + 0.7 * light)[..., None] * (1 - 0.7 * along - 0.6 * aside)
    field = np.zeros((_HEIGHT, _WIDTH))
    place = np.rint(y).astype(np.int64) % _HEIGHT, np.rint(x).astype(np.int64) % _WIDTH
    np.maximum.at(field, place, np.broadcast_to(glow, y.shape))
    return torch.from_numpy(field).float()


def _feather() -> tuple[NDArray[np.float64], ...]:
    """Points of an arm of length 1: distance along it, distance along a branch, and angle of the branch."""
    stem = [(step / 40, 0.0, 0.0) for step in range(40)]
    branches = [
        (at / 10, way / 16 * (1 - at / 10), side * _BRANCH_ANGLE)
        for at in range(1, 9)
        for way in range(1, 7)
        for side in (-1, 1)
    ]
    return tuple(np.array(stem + branches).T)


def _thin(texture: Tensor, scale: float) -> Tensor:
    """Every n-th pixel, counted from the middle of the first n."""
    stride = round(1 / scale)
    return texture[:, stride // 2 :: stride, stride // 2 :: stride]


def _cut(texture: Tensor, height: int, width: int, place: Sequence[float]) -> Tensor:
    """Cut at a relative place; a texture that is too small is extended by its mirror image."""
    for axis, size, at in ((1, height, place[0]), (2, width, place[1])):
        available = texture.shape[axis]
        room = available - size
        start = int(at * (room if room > 0 else available))
        if room > 0:
            texture = texture.narrow(axis, start, size)
        else:
            texture = texture.index_select(axis, mirror(torch.arange(start, start + size), available))
    return texture
