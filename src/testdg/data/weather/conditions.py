"""Four conditions as transforms of pictures in [0, 1], (N, 3, H, W), with their geometry; and what falls in them."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from testdg.data.corruptions.filters import clamp, correlate, gaussian_kernel, grey
from testdg.data.corruptions.generator import ImageNoise
from testdg.data.weather.geometry import FAR, Geometry, blur

_MOONLIGHT = (0.55, 0.75, 1.2)
_HEADLIGHT = (1.0, 0.95, 0.8)
_LAMPLIGHT = (1.0, 0.72, 0.38)
_GAMMA = 2.2
_OUTDOORS = 150.0  # metres beyond which only the sky is
_ROWS = 180  # large pictures are drawn this high and enlarged: a drop is as wide there as it is in a small one
_DROP, _FLAKE = 26, 11  # pixels of the longest streak, and across the largest flake


def fog(images: Tensor, geometry: Geometry, noise: ImageNoise, visibility: float) -> Tensor:
    """Scatter light by Koschmieder's law: a pixel keeps exp(-3 z / visibility) of its own, the rest is airlight."""
    density = 0.8 + 0.4 * clouds(noise, images.shape)
    air = noise.uniform(1, 1, 1, low=0.72, high=0.86)
    return _veil(images, geometry.depth * density, visibility, air)


def _veil(images: Tensor, depth: Tensor, visibility: float, air: Tensor | float) -> Tensor:
    """Mix with airlight; at the visibility, 5 % of the contrast are left."""
    kept = torch.exp(depth * (-3 / visibility))
    return images * kept + (1 - kept) * air


def night(images: Tensor, geometry: Geometry, noise: ImageNoise, ambient: float, beam: float, grain: float) -> Tensor:
    """Leave little light of the sky, add headlights and lit windows and lamps, and the noise of a dark sensor."""
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
    """A cone before the car: strong on the near road, weaker to the sides, above the horizon and far away."""
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
    """Dull the light, let the wet ground mirror what is above it, and let streaks fall."""
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
    """How grazing the sight is: 1 just below the horizon, less at the lower edge, 0 above; (N, 1, H, 1)."""
    row = (torch.arange(images.shape[-2]) + 0.5) / images.shape[-2]
    down = row.view(1, 1, -1, 1) - horizon.view(-1, 1, 1, 1)
    return torch.where(down > 0, 1 - 0.9 * down, 0.0)


def _mirror(images: Tensor, horizon: Tensor) -> Tensor:
    """Turn every picture upside down at its horizon, smeared downwards; black well above the horizon."""
    (height, width), reach = images.shape[-2:], images.shape[-2] // 14
    start = max(0, int(horizon.min() * height) - reach)  # what is mirrored lies below
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
    """Cover what faces up, dull the light, and let flakes fall."""
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
    layers = [F.interpolate(grid, tuple(size[-2:]), mode="bilinear", align_corners=False) for grid in (coarse, fine)]
    return 0.65 * layers[0] + 0.35 * layers[1]


def streaks(noise: ImageNoise, size: torch.Size, count: int, length: float) -> Tensor:
    """Rain, (N, 1, H, W) in [0, 1]: slanted lines, all of a picture in one direction; `length` in parts of a height."""
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
    """Snow, (N, 1, H, W) in [0, 1]: soft dots, many small and few large; `largest` in parts of a height."""
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
    """Put points on a picture, the brightest on top; those outside are dropped."""
    y, x = down.floor().long(), right.floor().long()
    seen = (y >= 0) & (y < rows) & (x >= 0) & (x < columns)
    place = torch.where(seen, y * columns + x, 0).flatten(1)
    field = torch.zeros(len(down), rows * columns)
    field.scatter_reduce_(1, place, torch.where(seen, light, 0.0).flatten(1), "amax")
    drawn = field.view(-1, 1, rows, columns)
    if (rows, columns) == tuple(size[-2:]):
        return drawn
    return F.interpolate(drawn, tuple(size[-2:]), mode="bilinear", align_corners=False)
