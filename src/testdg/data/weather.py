"""Fog, night, rain and snow as transforms of batches; random numbers depend on a picture's position in its data set."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from testdg.data.corruptions.apply import in_chunks
from testdg.data.corruptions.filters import clamp, correlate, gaussian, gaussian_kernel, grey
from testdg.data.corruptions.generator import ImageNoise
from testdg.data.corruptions.parameters import WEATHER, check_severity
from testdg.errors import UserError, look_up

FAR = 1000.0  # metres to the sky
_EYE, _WALL, _END = 1.5, 7.0, 120.0  # metres: height of the camera, distance of the walls, end of the assumed street
_HORIZON = 0.45


class Geometry(NamedTuple):
    """Maps (N, 1, H, W): metres to a pixel, and from 0 to 1 whether it faces up or shines. Horizon (N), from 0 to 1."""

    depth: Tensor
    upward: Tensor
    lights: Tensor
    horizon: Tensor

    def take(self, indices: Sequence[int]) -> Geometry:
        return Geometry(*(values[list(indices)] for values in self))


def guess_geometry(images: Tensor) -> Geometry:
    """Guess the geometry of photographs taken from a car, float in [0, 1], (N, 3, H, W).

    The scene is assumed to be a straight street between two walls, so the place in the picture gives the distance. Sky
    is bright, smooth and reaches the upper edge. Ground is below the horizon and looks like the lower middle. The upper
    edges of dark objects face up, too. Small spots that are brighter than their surroundings shine.
    """
    luma, (height, width) = grey(images), images.shape[-2:]
    soft = blur(luma, width / 200)
    # The tangents of the viewing angles, for a horizontal field of view of 64 degrees.
    up = ((_HORIZON * height - torch.arange(height) - 0.5) / (0.8 * width))[:, None]
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
    """Similarity of each pixel to the lower middle, relative to the brightness there."""
    height, width = images.shape[-2:]
    before = images[..., int(0.78 * height) : int(0.95 * height) + 1, int(0.35 * width) : int(0.65 * width) + 1]
    road = before.mean((2, 3), keepdim=True)
    unlike = (images - road).abs().mean(1, keepdim=True) / (road.mean(1, keepdim=True) + 0.1)
    return (1.5 - 2.5 * unlike).clamp(0, 1)


def blur(field: Tensor, sigma: float) -> Tensor:
    """Gaussian blur; a wide one is computed at a lower resolution."""
    step = max(1, int(sigma / 1.5))
    if step == 1:
        return gaussian(field, sigma)
    small = gaussian(F.avg_pool2d(field, step, ceil_mode=True), sigma / step)
    return F.interpolate(small, field.shape[-2:], mode="bilinear", align_corners=False)


_MOONLIGHT = (0.55, 0.75, 1.2)
_HEADLIGHT = (1.0, 0.95, 0.8)
_LAMPLIGHT = (1.0, 0.72, 0.38)
_GAMMA = 2.2
_OUTDOORS = 150.0  # metres beyond which only the sky is
# Drops and flakes are drawn on at most this many rows and enlarged: they have the same relative width at every size.
_ROWS = 180
_DROP, _FLAKE = 26, 11  # pixels of the longest streak, and across the largest flake


def fog(images: Tensor, geometry: Geometry, noise: ImageNoise, visibility: float) -> Tensor:
    """Scatter light by Koschmieder's law: exp(-3 z / visibility) of a pixel remains, the rest is airlight."""
    density = 0.8 + 0.4 * clouds(noise, images.shape)
    air = noise.uniform(1, 1, 1, low=0.72, high=0.86)
    return _veil(images, geometry.depth * density, visibility, air)


def _veil(images: Tensor, depth: Tensor, visibility: float, air: Tensor | float) -> Tensor:
    """Mix with airlight; at the distance of the visibility, 5 % of the contrast remain."""
    share = torch.exp(depth * (-3 / visibility))
    return images * share + (1 - share) * air


def night(images: Tensor, geometry: Geometry, noise: ImageNoise, ambient: float, beam: float, grain: float) -> Tensor:
    """Reduce the light of the sky; add headlights, lit windows, lamps, and the noise of a camera in the dark."""
    sky = (torch.log(geometry.depth / _OUTDOORS) / math.log(FAR / _OUTDOORS)).clamp(0, 1)
    light = _coloured(ambient * (1 - 0.9 * sky), _MOONLIGHT)
    light = light + _coloured(beam * _headlights(images, geometry), _HEADLIGHT)
    width = images.shape[-1]
    glow = 0.8 * geometry.lights + 0.5 * blur(geometry.lights, width / 80) + 0.5 * blur(geometry.lights, width / 25)
    linear = images.clamp(min=0) ** _GAMMA * light + _coloured(0.35 * glow, _LAMPLIGHT)
    return linear ** (1 / _GAMMA) + noise.normal(*images.shape[1:], scale=grain)


def _coloured(amount: Tensor, colour: tuple[float, float, float]) -> Tensor:
    return amount * torch.tensor(colour).view(3, 1, 1)


def _headlights(images: Tensor, geometry: Geometry) -> Tensor:
    """A cone of light in front of the car: strong on the near road, weak at the sides, above the horizon, far away."""
    height, width = images.shape[-2:]
    across = ((torch.arange(width) + 0.5) / width - 0.5) / 0.32
    below = (torch.arange(height)[:, None] + 0.5) / height - geometry.horizon.view(-1, 1, 1, 1)
    cone = torch.exp(-across * across) * torch.exp(-(((below - 0.2) / 0.22) ** 2))
    return cone / (1 + (geometry.depth / 18) ** 2)


def rain(
    images: Tensor,
    geometry: Geometry,
    noise: ImageNoise,
    visibility: float,
    dark: float,
    wet: float,
    drops: int,
    length: float,
) -> Tensor:
    """Dim the light, reflect the scene in the wet ground, and draw streaks of rain."""
    patches = clouds(noise, images.shape)
    mirrored = _mirror(images, geometry.horizon)
    shine = wet * geometry.upward * (0.45 + 0.9 * patches).clamp(max=1) * _below(images, geometry.horizon)
    damp = images * (1 - 0.35 * wet * geometry.upward)
    soaked = damp * (1 - 0.75 * shine) + mirrored * 0.75 * shine
    dull = dark * (0.75 * soaked + 0.25 * grey(soaked))
    hazy = _veil(dull, geometry.depth, visibility, 0.74 * dark)
    falling = 0.45 * streaks(noise, images.shape, drops, length)
    return hazy + falling * (0.85 - hazy).clamp(min=0)


def _below(images: Tensor, horizon: Tensor) -> Tensor:
    """Strength of reflections, (N, 1, H, 1): 1 just below the horizon, less at the lower edge, 0 above."""
    row = (torch.arange(images.shape[-2]) + 0.5) / images.shape[-2]
    down = row.view(1, 1, -1, 1) - horizon.view(-1, 1, 1, 1)
    return torch.where(down > 0, 1 - 0.9 * down, 0.0)


def _mirror(images: Tensor, horizon: Tensor) -> Tensor:
    """Mirror every picture at its horizon and blur it vertically; rows well above the horizon are black."""
    (height, width), reach = images.shape[-2:], images.shape[-2] // 14
    start = max(0, int(horizon.min() * height) - reach)  # only rows below are needed
    rows = (2 * horizon[:, None] * height).round().long() - 1 - torch.arange(start, height)
    index = rows.clamp(0, height - 1)[:, None, :, None].expand(-1, 3, -1, width)
    mirrored = correlate(images.gather(2, index), gaussian_kernel(height / 40, reach)[:, None], clamp)
    return F.pad(mirrored, (0, 0, start, 0))


def snow(
    images: Tensor,
    geometry: Geometry,
    noise: ImageNoise,
    visibility: float,
    cover: float,
    count: int,
    largest: float,
) -> Tensor:
    """Cover surfaces that face up, dim the light, and draw flakes."""
    patches = clouds(noise, images.shape, cells=9)
    lying = geometry.upward * (1.5 * cover - 1.5 * (1 - cover) * patches).clamp(0, 1)
    light = grey(images)
    white = _coloured(0.7 + 0.2 * light + 0.1 * patches, (0.97, 0.99, 1.02))
    covered = images * (1 - lying) + white * lying
    dull = (1 - 0.5 * cover) * covered + 0.5 * cover * grey(covered)
    hazy = _veil(dull, geometry.depth, visibility, 0.8)
    falling = flakes(noise, images.shape, count, largest)
    return hazy + falling * (0.97 - hazy).clamp(min=0)


def clouds(noise: ImageNoise, size: torch.Size, cells: int = 6) -> Tensor:
    """Smooth random patches, (N, 1, H, W) in [0, 1]."""
    coarse = noise.uniform(1, cells, 2 * cells)
    fine = noise.uniform(1, 3 * cells, 6 * cells)
    wide, narrow = (_enlarge(grid, size) for grid in (coarse, fine))
    return 0.65 * wide + 0.35 * narrow


def _enlarge(field: Tensor, size: torch.Size) -> Tensor:
    return F.interpolate(field, tuple(size[-2:]), mode="bilinear", align_corners=False)


def streaks(noise: ImageNoise, size: torch.Size, count: int, length: float) -> Tensor:
    """Rain, (N, 1, H, W) in [0, 1]: slanted lines, parallel in each picture; `length` is relative to the height."""
    rows, columns = _drawn_size(size)
    y, x, bright, long = noise.uniform(4, count).unbind(1)  # (N, count)
    slant = noise.uniform(1, low=-0.35, high=0.35)
    step = torch.linspace(0, 1, _DROP)
    along = (0.35 + 0.65 * long[..., None]) * (length * rows) * step  # (N, count, _DROP)
    down = y[..., None] * 1.2 * rows - 0.2 * rows + along
    right = x[..., None] * columns + slant[..., None] * along
    light = (0.3 + 0.7 * bright[..., None]) * (0.3 + 0.7 * step)
    return _scatter(down, right, light, rows, columns, size)


def flakes(noise: ImageNoise, size: torch.Size, count: int, largest: float) -> Tensor:
    """Snow, (N, 1, H, W) in [0, 1]: soft dots, many small and few large; `largest` is relative to the height."""
    rows, columns = _drawn_size(size)
    y, x, wide, bright = noise.uniform(4, count).unbind(1)
    radius = (0.7 + (largest * rows - 0.7) * wide**4).clamp(min=0.7)[..., None]  # (N, count, 1)
    offset = torch.arange(_FLAKE) - _FLAKE // 2
    down, right = (values.flatten() for values in torch.meshgrid(offset, offset, indexing="ij"))
    gap = torch.sqrt((down * down + right * right).float()) / radius
    light = (0.5 + 0.5 * bright[..., None]) * (1.5 - gap).clamp(0, 1)
    return _scatter(y[..., None] * rows + down, x[..., None] * columns + right, light, rows, columns, size)


def _drawn_size(size: torch.Size) -> tuple[int, int]:
    height, width = size[-2:]
    rows = min(height, _ROWS)
    return rows, max(1, round(width * rows / height))


def _scatter(down: Tensor, right: Tensor, light: Tensor, rows: int, columns: int, size: torch.Size) -> Tensor:
    """Draw points on a picture, the brightest on top; points outside are dropped."""
    y, x = down.floor().long(), right.floor().long()
    seen = (y >= 0) & (y < rows) & (x >= 0) & (x < columns)
    place = torch.where(seen, y * columns + x, 0).flatten(1)
    field = torch.zeros(len(down), rows * columns)
    field.scatter_reduce_(1, place, torch.where(seen, light, 0.0).flatten(1), "amax")
    drawn = field.view(-1, 1, rows, columns)
    if (rows, columns) == tuple(size[-2:]):
        return drawn
    return _enlarge(drawn, size)


CONDITIONS = ("fog", "night", "rain", "snow")

_FUNCTIONS: dict[str, Callable[..., Tensor]] = {"fog": fog, "night": night, "rain": rain, "snow": snow}


def weather(
    images: Tensor,
    name: str,
    severity: int,
    *,
    indices: Sequence[int],
    seed: int = 0,
    geometry: Geometry | None = None,
) -> Tensor:
    """Apply a condition to uint8 pictures, (N, 3, H, W), at a severity of 1 to 5.

    `indices` are the positions of the pictures in the data set: random numbers depend on them, not on the batch. By
    default, the `geometry` is estimated from each picture.
    """
    settings = look_up("condition", name, WEATHER.rows)[check_severity(severity) - 1]
    if images.dtype != torch.uint8 or images.ndim != 4 or images.shape[1] != 3:
        raise UserError(
            f"images must be uint8 of shape (N, 3, H, W); got {images.dtype} {tuple(images.shape)}", code="image-shape"
        )
    if len(indices) != len(images):
        raise UserError(
            f"indices must be one per image; got {len(indices)} for {len(images)} images",
            code="wrong-indices",
        )

    def change(part: Tensor, place: slice) -> Tensor:
        known = guess_geometry(part) if geometry is None else geometry.take(range(place.start, place.stop))
        noise = ImageNoise(seed, f"weather {name}", severity, indices[place])
        return _FUNCTIONS[name](part, known, noise, *settings)

    return in_chunks(images, change)
