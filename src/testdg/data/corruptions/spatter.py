"""Spatter: drops of water or mud on the lens."""

import torch
from torch import Tensor

from testdg.data.corruptions.filters import clamp, correlate, from_levels, gaussian, reflect
from testdg.data.corruptions.generator import ImageNoise

_WATER = (175, 238, 238)
_MUD = (63, 42, 20)
_FARTHEST = 20
# Light from the upper left.
_RELIEF = torch.tensor([[-2.0, -1.0, 0.0], [-1.0, 1.0, 1.0], [0.0, 1.0, 2.0]])
_BOX = torch.full((3, 3), 1 / 9)
_SLOPE = torch.tensor([[-1.0, 0.0, 1.0], [-2.0, 0.0, 2.0], [-1.0, 0.0, 1.0]])
_STEEP = 150.0
_TANGENT = 0.41421356  # of 22.5 degrees


def spatter(
    images: Tensor,
    noise: ImageNoise,
    mean: float,
    scale: float,
    sigma: float,
    threshold: float,
    strength: float,
    is_mud: float,
) -> Tensor:
    """Throw drops on the lens: where a blurred normal field exceeds a threshold."""
    field = noise.normal(1, *images.shape[-2:], mean=mean, scale=scale).to(images.device)
    liquid = gaussian(field, sigma)
    if is_mud:  # brown where the drops are thick
        cover = gaussian((liquid > threshold).float(), strength)
        cover = cover.masked_fill(cover < 0.8, 0.0)
        return images * (1 - cover) + cover * _colour(_MUD, images)
    # It reflects light, most where it slopes away from an edge.
    liquid = liquid.masked_fill(liquid < threshold, 0.0)
    relief = correlate(_equalise(_edge_distance(liquid)), _RELIEF, reflect).clamp(0, 255)
    light = liquid * correlate(relief, _BOX, reflect)
    brightest = light.amax(dim=(2, 3), keepdim=True).clamp(min=1e-6)
    return images + light * (strength / brightest) * _colour(_WATER, images)


def _colour(levels: tuple[int, int, int], images: Tensor) -> Tensor:
    """Make a colour that broadcasts over a batch."""
    return from_levels(torch.tensor(levels, device=images.device)).view(1, 3, 1, 1)


def _edge_distance(liquid: Tensor) -> Tensor:
    """Measure each pixel's distance, at most 20 and smoothed, to the nearest edge of a drop; whole numbers."""
    square = torch.where(_edges(liquid), 0.0, float(_FARTHEST**2))
    for axis in (-1, -2):
        square = _nearest(square, axis)
    return correlate(square.sqrt(), _BOX, reflect).add(1e-4).floor()


def _edges(liquid: Tensor) -> Tensor:
    """Find thin edges: where the slope is steep and steepest among the neighbours up and down the slope."""
    levels = (liquid * 255).floor()
    across, down = correlate(levels, _SLOPE, clamp), correlate(levels, _SLOPE.T, clamp)
    steepness = across.abs() + down.abs()
    flat, upright = down.abs() < _TANGENT * across.abs(), across.abs() < _TANGENT * down.abs()
    diagonal = torch.where(across * down >= 0, _ridge(steepness, 1, 1), _ridge(steepness, 1, -1))
    steep = torch.where(upright, _ridge(steepness, 1, 0), diagonal)
    ridge = torch.where(flat, _ridge(steepness, 0, 1), steep)
    return ridge & (steepness > _STEEP)


def _ridge(field: Tensor, down: int, right: int) -> Tensor:
    """Mark where a field exceeds its neighbour on one side and is not below the one on the other."""
    padded = torch.nn.functional.pad(field, (1, 1, 1, 1))
    height, width = field.shape[-2:]
    before = padded[..., 1 - down : 1 - down + height, 1 - right : 1 - right + width]
    after = padded[..., 1 + down : 1 + down + height, 1 + right : 1 + right + width]
    return (field > before) & (field >= after)


def _nearest(square: Tensor, axis: int) -> Tensor:
    """Take the least of the squared distances along an axis, each plus its own squared way."""
    size = square.shape[axis]
    least = square.clone()
    for way in range(1, min(_FARTHEST, size)):
        for target, source in ((way, 0), (0, way)):
            part = least.narrow(axis, target, size - way)
            torch.minimum(part, square.narrow(axis, source, size - way) + way * way, out=part)
    return least


def _equalise(levels: Tensor) -> Tensor:
    """Spread the whole numbers of each image so that all of 0..255 occur about equally often."""
    flat = levels.flatten(1).long()
    counts = torch.zeros(len(flat), 256, dtype=torch.int64, device=flat.device)
    counts.scatter_add_(1, flat, torch.ones_like(flat))
    below = counts.cumsum(dim=1)
    first = below.gather(1, flat.amin(dim=1, keepdim=True))
    spread = (below - first).clamp(min=0).float() * 255 / (flat.shape[1] - first).clamp(min=1)
    return (spread + 0.5).floor().gather(1, flat).view(levels.shape)
