"""Augmentation of prepared images: colour, affine, blur, flip and noise, drawn for each image, on the device.

The operations and ranges are those that CoTTA (Wang et al., CVPR 2022) made common in this field.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch
import torch.nn.functional as F
from torch import Generator, Tensor

from testdg.data.corruptions.filters import grey


@dataclass(frozen=True)
class Augmentation:
    """Ranges of the random operations; `strength` scales them all (0 leaves the images unchanged)."""

    strength: float = 1.0
    noise: float = 0.005
    blur: float = 0.5
    """Largest standard deviation of the blur, in pixels; 0 for none."""
    flip: bool = True
    move: bool = True
    """Whether to rotate, shift, scale and mirror."""

    def __call__(self, images: Tensor, generator: Generator) -> Tensor:
        """Make one augmented view of each image in [0, 1], in full precision: half precision would move pixels."""
        if self.strength <= 0:
            return images
        with torch.autocast(images.device.type, enabled=False):
            images = jitter_colour(images, self.strength, generator)
            images = transform(images, self.strength, generator, self.flip) if self.move else images
            images = blur(images, self.blur * self.strength, generator) if self.blur else images
            grain = torch.randn(images.shape, generator=generator, device=images.device)
            return (images + self.noise * self.strength * grain).clamp(0, 1)


def jitter_colour(images: Tensor, strength: float, generator: Generator) -> Tensor:
    """Draw brightness, contrast, saturation, hue and gamma for each image."""

    def factor(spread: float) -> Tensor:
        low, high = 1 - min(strength * spread, 0.95), 1 + strength * spread
        return _uniform((len(images), 1, 1, 1), low, high, images, generator)

    images = (images * factor(0.4)).clamp(0, 1)
    centre = luma(images).mean((2, 3), keepdim=True)
    images = (centre + (images - centre) * factor(0.3)).clamp(0, 1)
    dull = luma(images)
    images = (dull + (images - dull) * factor(0.5)).clamp(0, 1)
    turns = _uniform((len(images),), -0.06, 0.06, images, generator) * strength
    if images.shape[1] == 3:  # only red, green and blue have a hue
        images = rotate_hue(images, turns).clamp(0, 1)
    return images.clamp(min=1e-4) ** factor(0.3)


def luma(images: Tensor) -> Tensor:
    """Grey value of each pixel, (N, 1, H, W)."""
    return grey(images) if images.shape[1] == 3 else images.mean(1, keepdim=True)


def rotate_hue(images: Tensor, turns: Tensor) -> Tensor:
    """Turn the chroma plane (YIQ) of each image by a fraction of a full turn."""
    to_yiq, from_yiq = _yiq(images.device)
    angle = 2 * math.pi * turns
    cos, sin, zero, one = angle.cos(), angle.sin(), torch.zeros_like(angle), torch.ones_like(angle)
    rows = [torch.stack(row, -1) for row in ((one, zero, zero), (zero, cos, -sin), (zero, sin, cos))]
    matrix = from_yiq @ torch.stack(rows, 1) @ to_yiq  # (N, 3, 3)
    return torch.einsum("nij,njhw->nihw", matrix, images)


@lru_cache
def _yiq(device: torch.device) -> tuple[Tensor, Tensor]:
    """The matrix from RGB to YIQ and its inverse; cached per device."""
    rows = [[0.299, 0.587, 0.114], [0.596, -0.274, -0.322], [0.211, -0.523, 0.312]]
    to_yiq = torch.tensor(rows, device="cpu")
    return to_yiq.to(device), to_yiq.inverse().to(device)


def transform(images: Tensor, strength: float, generator: Generator, mirror: bool = True) -> Tensor:
    """Rotate by up to 15 degrees, shift by up to an eighth, scale by up to a tenth, mirror half of the images."""
    n = len(images)
    angle = _uniform((n,), -math.pi / 12, math.pi / 12, images, generator) * strength
    scale = 1 + _uniform((n,), -0.1, 0.1, images, generator) * strength
    shift = _uniform((n, 2), -0.25, 0.25, images, generator) * strength  # the image spans -1..1
    flip = torch.ones(n, device=images.device)
    if mirror:
        flip = torch.where(_uniform((n,), 0, 1, images, generator) < 0.5, 1.0, -1.0)
    cos, sin = angle.cos() / scale, angle.sin() / scale
    theta = torch.stack([flip * cos, -sin, shift[:, 0], flip * sin, cos, shift[:, 1]], 1).view(n, 2, 3)
    grid = F.affine_grid(theta, list(images.shape), align_corners=False)
    return F.grid_sample(images, grid, mode="bilinear", padding_mode="border", align_corners=False)


def blur(images: Tensor, most: float, generator: Generator) -> Tensor:
    """Gaussian blur with five taps and a standard deviation up to `most` pixels, drawn per image."""
    n, c, h, w = images.shape
    sigma = _uniform((n,), 0.001, max(most, 0.001), images, generator)
    offsets = torch.arange(-2, 3, device=images.device)
    kernel = (-(offsets**2) / (2 * sigma[:, None] ** 2)).exp()
    kernel = (kernel / kernel.sum(1, keepdim=True)).repeat_interleave(c, 0)  # (N C, 5)
    flat = F.pad(images, (2, 2, 2, 2), mode="reflect").reshape(1, n * c, h + 4, w + 4)
    flat = F.conv2d(flat, kernel.view(n * c, 1, 5, 1), groups=n * c)
    return F.conv2d(flat, kernel.view(n * c, 1, 1, 5), groups=n * c).view(n, c, h, w)


def _uniform(shape: Sequence[int], low: float, high: float, like: Tensor, generator: Generator) -> Tensor:
    return low + (high - low) * torch.rand(shape, generator=generator, device=like.device)
