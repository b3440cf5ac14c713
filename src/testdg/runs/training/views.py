"""Random views of training images in [0, 1]: batched, on the device, labels along where they must be."""

import torch
import torch.nn.functional as F
from torch import Generator, Tensor

from testdg.data.augmentation import jitter_colour
from testdg.data.segmentation.classes import IGNORED


def class_view(images: Tensor, generator: Generator, *, flip: bool = True, colour: float = 0.25) -> Tensor:
    """Shift images by up to an eighth, mirror every other one, and change colours a little."""
    images = random_crop(images, images.shape[-1] // 8, generator)
    if flip:
        images = random_flip(images, generator)
    return jitter_colour(images, colour, generator) if colour > 0 else images


def random_crop(images: Tensor, padding: int, generator: Generator) -> Tensor:
    """Cut every image out of itself with a black border, at a place of its own; the size stays."""
    n, _, height, width = images.shape
    top, left = torch.randint(2 * padding + 1, (2, n, 1), generator=generator, device=images.device)
    rows, columns = (torch.arange(size, device=images.device) for size in (height, width))
    padded = F.pad(images, (padding,) * 4).permute(0, 2, 3, 1)  # (N, H, W, C)
    which = torch.arange(n, device=images.device)[:, None, None]
    return padded[which, (top + rows)[:, :, None], (left + columns)[:, None, :]].permute(0, 3, 1, 2).contiguous()


def random_flip(images: Tensor, generator: Generator) -> Tensor:
    chosen = torch.rand(len(images), 1, 1, 1, generator=generator, device=images.device) < 0.5
    return torch.where(chosen, images.flip(3), images)


def turned_view(images: Tensor, generator: Generator, *, degrees: float, zoom: float, shift: float) -> Tensor:
    """Turn, zoom and shift each image, by up to these."""
    turn, size, across, down = (torch.rand(4, len(images), generator=generator) * 2 - 1).unbind()
    angle, scale = turn * torch.pi * degrees / 180, 1 / (1 + size * zoom)
    cos, sin = scale * angle.cos(), scale * angle.sin()
    grid = _grid((cos, -sin, 2 * shift * across), (sin, cos, 2 * shift * down), images)  # the grid is 2 wide
    return F.grid_sample(images, grid, padding_mode="border", align_corners=False)


def map_view(
    images: Tensor,
    labels: Tensor,
    scales: tuple[float, float],
    generator: Generator,
    *,
    mirror: bool = True,
    colour: float = 0.0,
) -> tuple[Tensor, Tensor]:
    """Enlarge images by a factor between two, cut them to their size, mirror every other one; labels go along.

    What is beyond an image that got smaller repeats its border, and is ignored. Colours change last.
    """
    low, high = scales
    across, down, size, side = torch.rand(4, len(images), generator=generator, device=images.device)
    size = 1 / (low + (high - low) * size)  # of the part that is seen
    flip = torch.where(side < 0.5, -1.0, 1.0) if mirror else torch.ones_like(side)
    zero, x, y = torch.zeros_like(size), (2 * across - 1) * (1 - size), (2 * down - 1) * (1 - size)
    grid = _grid((size * flip, zero, x), (zero, size, y), images)
    view = F.grid_sample(images, grid, padding_mode="border", align_corners=False)
    found = F.grid_sample(labels[:, None].float(), grid, "nearest", "border", align_corners=False)
    labels = torch.where((grid.abs() > 1).any(-1), IGNORED, found[:, 0].long())
    return jitter_colour(view, colour, generator) if colour > 0 else view, labels


def _grid(across: tuple[Tensor, ...], down: tuple[Tensor, ...], images: Tensor) -> Tensor:
    """Where every pixel of a view is read, (N, H, W, 2), from the two rows of an affine map per image."""
    maps = torch.stack([torch.stack(across, 1), torch.stack(down, 1)], 1)  # (N, 2, 3)
    return F.affine_grid(maps, list(images.shape), align_corners=False)
