"""Grey levels, linear filters and geometry of batches of images.

Pixels only pass exactly rounded operations (add, multiply, compare, gather), in an order that does not depend on the
batch, so the result of an image is the same in every batch, bit for bit. That is why nothing here calls a convolution
or a matrix product.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor

Border = Callable[[Tensor, int], Tensor]
_LUMA = (0.299, 0.587, 0.114)
# A grey level that float32 rounding has lowered is not truncated to the next lower one.
_ROUNDING = 2.0**-10


def from_levels(levels: Tensor) -> Tensor:
    """Convert uint8 levels to float32 in [0, 1]."""
    return levels.float() * (1 / 255)


def to_levels(images: Tensor) -> Tensor:
    """Clip to [0, 1] and truncate to uint8 levels."""
    return (images.clamp(0, 1) * 255 + _ROUNDING).floor().to(torch.uint8)


def grey(images: Tensor) -> Tensor:
    """Luminance, one channel."""
    red, green, blue = (images[:, channel : channel + 1] * weight for channel, weight in enumerate(_LUMA))
    return red + green + blue


def clamp(index: Tensor, size: int) -> Tensor:
    """Continue an axis with its last value: a a a | a b c d | d d d."""
    return index.clamp(0, size - 1)


def reflect(index: Tensor, size: int) -> Tensor:
    """Mirror an axis at its last value: d c b | a b c d | c b a."""
    period = max(2 * (size - 1), 1)
    folded = index.remainder(period)
    return torch.minimum(folded, period - folded).clamp(max=size - 1)


def mirror(index: Tensor, size: int) -> Tensor:
    """Mirror an axis at its edge: c b a | a b c d | d c b."""
    folded = index.remainder(2 * size)
    return torch.minimum(folded, 2 * size - 1 - folded)


def extend(images: Tensor, rows: int, columns: int, border: Border) -> Tensor:
    for axis, margin in ((-2, rows), (-1, columns)):
        if margin:
            size = images.shape[axis]
            index = torch.arange(-margin, size + margin, device=images.device)
            images = images.index_select(axis, border(index, size))
    return images


def correlate(images: Tensor, kernel: Tensor, border: Border) -> Tensor:
    """Slide a small kernel (rows, columns; both odd) over the last two axes."""
    height, width = images.shape[-2:]
    extended = extend(images, kernel.shape[0] // 2, kernel.shape[1] // 2, border)
    total = torch.zeros_like(images)
    for row, weights in enumerate(kernel.tolist()):
        for column, weight in enumerate(weights):
            if weight:
                total += extended[..., row : row + height, column : column + width] * weight
    return total


def gaussian_kernel(sigma: float, radius: int) -> Tensor:
    """Sample the normalised bell curve at -radius, ..., radius."""
    if sigma == 0:
        return torch.ones(1, dtype=torch.float64)
    bell = [math.exp(-0.5 * (offset / sigma) ** 2) for offset in range(-radius, radius + 1)]
    return torch.tensor(bell, dtype=torch.float64) / math.fsum(bell)


def gaussian(images: Tensor, sigma: float) -> Tensor:
    """Blur with a bell curve cut at four sigma; the border continues outwards."""
    kernel = gaussian_kernel(sigma, int(4 * sigma + 0.5))
    return correlate(correlate(images, kernel[:, None], clamp), kernel[None, :], clamp)


def disk_kernel(radius: float, alias: float) -> Tensor:
    """Make the kernel of a lens out of focus: a disk whose edge is softened."""
    reach = 8 if radius <= 8 else int(radius)
    offset = torch.arange(-reach, reach + 1, dtype=torch.float64)
    disk = ((offset[:, None] ** 2 + offset[None, :] ** 2) <= radius**2).double()
    edge = gaussian_kernel(alias, 1 if radius <= 8 else 2)
    soft = correlate(correlate(disk / disk.sum(), edge[:, None], reflect), edge[None, :], reflect)
    used = int((soft.sum(dim=0) > 1e-9).sum()) // 2  # rows and columns of zeros around it are cut
    return soft[reach - used : reach + used + 1, reach - used : reach + used + 1]


def zoom(images: Tensor, factor: float) -> Tensor:
    """Magnify the centre of the images, bilinearly; the size stays."""
    height, width = images.shape[-2:]
    tall = _interpolate_rows(images, _zoom_positions(height, factor))
    return _interpolate_rows(tall.mT.contiguous(), _zoom_positions(width, factor)).mT


def _zoom_positions(size: int, factor: float) -> Tensor:
    """Positions on the axis that the pixels of the magnified centre are read from."""
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
    down = (rows - top).float().to(images.device)
    right = (columns - left).float().to(images.device)
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
        down = [math.ceil(tap * math.sin(angle) - 0.5) for angle in radians]
        right = [math.ceil(tap * math.cos(angle) - 0.5) for angle in radians]
        row = clamp(rows + torch.tensor(down, device=images.device)[:, None], height)
        column = clamp(columns + torch.tensor(right, device=images.device)[:, None], width)
        index = row[:, :, None] * width + column[:, None, :]
        total += _pick(images, index) * (weight / math.fsum(bell))
    return total
