"""What weather asks about a picture: how far things are, which surfaces face up, and what shines at night."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from testdg.data.corruptions.filters import gaussian, grey

FAR = 1000.0  # metres to the sky
_EYE, _WALL, _END = 1.5, 7.0, 120.0  # of the street that a photograph is taken to show, in metres
_HORIZON = 0.45


class Geometry(NamedTuple):
    """Maps (N, 1, H, W) of distance in metres and, from 0 to 1, of what faces up and what shines; the horizon (N)."""

    depth: Tensor
    upward: Tensor
    lights: Tensor
    horizon: Tensor

    def take(self, indices: Sequence[int]) -> Geometry:
        """The geometry of some pictures."""
        return Geometry(*(values[list(indices)] for values in self))


def guess_geometry(images: Tensor) -> Geometry:
    """Guess the geometry of photographs taken from a car, float in [0, 1], (N, 3, H, W).

    The street is a straight one between two walls: distance follows from the place in the picture. What is bright,
    smooth and reaches up to the upper edge is sky; what is below the horizon and looks like the lower middle is ground;
    the upper edges of dark things face up, too; small spots that are brighter than what is around them shine.
    """
    luma, (height, width) = grey(images), images.shape[-2:]
    soft = blur(luma, width / 200)
    up = ((_HORIZON * height - torch.arange(height) - 0.5) / (0.8 * width))[:, None]  # of a lens that sees 64 degrees
    across = (torch.arange(width) + 0.5 - width / 2) / (0.8 * width)
    floor, walls = _EYE / (-up).clamp(min=1e-3), _WALL / across.abs().clamp(min=1e-3)
    corridor = torch.minimum(floor, walls).clamp(max=_END)
    sky = _sky(luma, soft, up)
    depth = corridor * (FAR / corridor) ** sky
    edges = ((soft.roll(max(1, width // 100), -2) - soft - 0.08) * 4).clamp(0, 0.8) * (up > -0.15)
    ground = blur(_likeness(images) * (floor < 1.3 * walls) * (up < 0), width / 200)
    upward = torch.maximum(ground, edges) * (1 - sky)
    near_sky = (4 * blur(sky, width / 50)).clamp(max=1)
    lights = ((luma - blur(luma, width / 40) - 0.16) * 4).clamp(0, 1) * (1 - near_sky) * (1 - upward)
    return Geometry(depth, upward, lights, torch.full((len(images),), _HORIZON))


def _sky(luma: Tensor, soft: Tensor, up: Tensor) -> Tensor:
    """How much each pixel is sky: smooth, and bright up to the upper edge or white."""
    smooth = (1.5 - (luma - soft).abs() * 12).clamp(0, 1)
    bright, white = ((soft - 0.5) * 5).clamp(0, 1), ((soft - 0.8) * 8).clamp(0, 1)
    open_above = blur(bright * smooth, luma.shape[-1] / 200).cummin(-2).values
    return torch.maximum(open_above, white * smooth) * (up > 0)


def _likeness(images: Tensor) -> Tensor:
    """How much each pixel looks like the lower middle, compared with how bright that is."""
    height, width = images.shape[-2:]
    before = images[..., int(0.78 * height) : int(0.95 * height) + 1, int(0.35 * width) : int(0.65 * width) + 1]
    road = before.mean((2, 3), keepdim=True)
    unlike = (images - road).abs().mean(1, keepdim=True) / (road.mean(1, keepdim=True) + 0.1)
    return (1.5 - 2.5 * unlike).clamp(0, 1)


def blur(field: Tensor, sigma: float) -> Tensor:
    """Blur with a bell curve; a wide one works on fewer pixels."""
    step = max(1, int(sigma / 1.5))
    if step == 1:
        return gaussian(field, sigma)
    small = gaussian(F.avg_pool2d(field, step, ceil_mode=True), sigma / step)
    return F.interpolate(small, field.shape[-2:], mode="bilinear", align_corners=False)
