"""Light augmentation for training: a shifted crop, a mirror image, a little colour; batched, on the device."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Generator, Tensor

from testdg.data.augmentation import jitter_colour


def training_view(images: Tensor, generator: Generator, *, flip: bool = True, colour: float = 0.25) -> Tensor:
    """Shift images in [0, 1] by up to an eighth, mirror every other one, and change colours a little."""
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
    """Mirror every image with probability one half."""
    chosen = torch.rand(len(images), 1, 1, 1, generator=generator, device=images.device) < 0.5
    return torch.where(chosen, images.flip(3), images)
