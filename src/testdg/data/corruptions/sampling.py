"""Geometry of batches of images: zoom, warp and motion, free of the batch as in `filters`."""

import math

import torch
from torch import Tensor

from testdg.data.corruptions.filters import Border, clamp


def zoom(images: Tensor, factor: float) -> Tensor:
    """Magnify the centre of the images, bilinearly; the size stays."""
    height, width = images.shape[-2:]
    tall = _interpolate_rows(images, _zoom_positions(height, factor))
    return _interpolate_rows(tall.mT.contiguous(), _zoom_positions(width, factor)).mT


def _zoom_positions(size: int, factor: float) -> Tensor:
    """Say where on the axis each pixel of the magnified centre comes from."""
    cropped = math.ceil(size / factor)
    enlarged = round(cropped * factor)
    start, trimmed = (size - cropped) // 2, (enlarged - size) // 2
    step = (cropped - 1) / max(enlarged - 1, 1)
    return start + step * (trimmed + torch.arange(size, dtype=torch.float64))


def _interpolate_rows(images: Tensor, positions: Tensor) -> Tensor:
    """Read the images between their rows."""
    last = images.shape[-2]
    above = positions.floor()
    weight = (positions - above).float().to(images.device)[:, None]
    index = above.long().to(images.device)
    upper, lower = (images.index_select(-2, clamp(index + step, last)) for step in (0, 1))
    return upper.mul_(1 - weight).add_(lower.mul_(weight))


def warp(images: Tensor, rows: Tensor, columns: Tensor, border: Border) -> Tensor:
    """Read every image bilinearly at its own positions: rows and columns are (N, H, W), float64."""
    height, width = images.shape[-2:]
    top, left = rows.floor(), columns.floor()
    down, right = ((at - before).float().to(images.device) for at, before in ((rows, top), (columns, left)))
    rows_at = [border(top.long() + step, height).to(images.device) for step in (0, 1)]
    columns_at = [border(left.long() + step, width).to(images.device) for step in (0, 1)]
    total = torch.zeros_like(images)
    for row, row_weight in zip(rows_at, (1 - down, down), strict=True):
        for column, column_weight in zip(columns_at, (1 - right, right), strict=True):
            total += _pick(images, row * width + column) * (row_weight * column_weight)[:, None]
    return total


def _pick(images: Tensor, index: Tensor) -> Tensor:
    """Take pixels by their flat position, (N, H, W), the same for every channel."""
    flat = index.flatten(1)[:, None].expand(-1, images.shape[1], -1)
    return images.flatten(2).gather(2, flat).view(images.shape)


def motion(images: Tensor, radius: float, sigma: float, angles: Tensor) -> Tensor:
    """Blur every image along its own direction (degrees): one half of a bell curve on a line of pixels."""
    height, width = images.shape[-2:]
    taps = range(2 * int(radius) + 1)
    bell = [math.exp(-0.5 * (tap / sigma) ** 2) for tap in taps]
    rows, columns = (torch.arange(size, device=images.device) for size in (height, width))
    radians = [math.radians(angle) for angle in angles.tolist()]
    total = torch.zeros_like(images)
    for tap, weight in zip(taps, bell, strict=True):
        down = torch.tensor([math.ceil(tap * math.sin(angle) - 0.5) for angle in radians], device=images.device)
        right = torch.tensor([math.ceil(tap * math.cos(angle) - 0.5) for angle in radians], device=images.device)
        row, column = clamp(rows + down[:, None], height), clamp(columns + right[:, None], width)
        total += _pick(images, row[:, :, None] * width + column[:, None, :]) * (weight / math.fsum(bell))
    return total
