"""What falls: streaks of rain and flakes of snow; and the uneven patches of weather."""

import torch
import torch.nn.functional as F
from torch import Tensor

from testdg.data.corruptions.generator import ImageNoise

_ROWS = 180  # large pictures are drawn this high and enlarged: a drop is as wide there as it is in a small one
_DROP, _FLAKE = 26, 11  # pixels of the longest streak, and across the largest flake


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
