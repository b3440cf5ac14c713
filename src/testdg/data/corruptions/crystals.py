"""Procedural frost: fern-like crystals on a cloudy pane."""

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from testdg.data.corruptions.filters import gaussian
from testdg.data.corruptions.generator import ImageNoise
from testdg.data.corruptions.plasma import plasma

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


PANES: tuple[Pane, ...] = (
    Pane((77.5, 149.0, 165.7), (26.8, 16.4, 15.3), 0.50, 900, 26.0),
    Pane((200.8, 205.4, 214.5), (21.4, 22.1, 22.6), 0.27, 500, 40.0),
    Pane((200.8, 205.4, 214.5), (21.4, 22.1, 22.6), 0.27, 500, 40.0),
    Pane((138.0, 153.2, 165.6), (29.0, 29.0, 30.2), 0.20, 1400, 16.0),
    Pane((112.3, 123.3, 134.7), (44.3, 43.2, 41.6), 0.32, 600, 34.0),
)
"""The strengths of the five photographs that the reference recipe blends in."""


def grow(pane: Pane, number: int) -> Tensor:
    """Grow one texture, (3, H, W) uint8."""
    noise = ImageNoise(0, "frost texture", 0, [number])
    cloud = plasma(noise, 1024, decay=1.8)[:, None, :_HEIGHT, :_WIDTH]
    ice = gaussian(_crystals(noise, pane)[None, None], 0.7)
    surface = _standardise(cloud) * pane.cloudiness**0.5 + _standardise(ice) * (1 - pane.cloudiness) ** 0.5
    surface = _standardise(_standardise(surface).clamp(-2.5, 2.5))[0]
    mean, deviation = (torch.tensor(values)[:, None, None] for values in (pane.mean, pane.deviation))
    return (surface * deviation + mean).round().clamp(0, 255).byte()


def _standardise(field: Tensor) -> Tensor:
    """Give a field the mean 0 and the deviation 1."""
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
    """Give the points of an arm of length 1: the way along it, the way along a branch, and the branch's angle."""
    stem = [(step / 40, 0.0, 0.0) for step in range(40)]
    branches = [
        (at / 10, way / 16 * (1 - at / 10), side * _BRANCH_ANGLE)
        for at in range(1, 9)
        for way in range(1, 7)
        for side in (-1, 1)
    ]
    return tuple(np.array(stem + branches).T)
