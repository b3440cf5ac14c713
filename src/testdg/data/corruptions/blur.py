"""Blur of lens, glass, motion and zoom."""

import torch
from torch import Tensor

from testdg.data.corruptions.filters import correlate, disk_kernel, from_levels, gaussian, reflect, to_levels
from testdg.data.corruptions.generator import ImageNoise
from testdg.data.corruptions.sampling import motion, zoom


def defocus_blur(images: Tensor, noise: ImageNoise, radius: float, alias: float) -> Tensor:
    """Convolve with the disk of a lens out of focus."""
    return correlate(images, disk_kernel(radius, alias), reflect)


def gaussian_blur(images: Tensor, noise: ImageNoise, sigma: float) -> Tensor:
    """Convolve with a bell curve."""
    return gaussian(images, sigma)


def motion_blur(images: Tensor, noise: ImageNoise, radius: float, sigma: float) -> Tensor:
    """Smear along a random direction within 45 degrees of the horizontal."""
    return motion(images, radius, sigma, noise.uniform(low=-45.0, high=45.0))


def zoom_blur(images: Tensor, noise: ImageNoise, factors: float, step: float) -> Tensor:
    """Average the image with its magnified centres."""
    step = (1 + step) - 1  # the recipe's own rounding, which decides the size of some magnified centres
    total = zoom(images, 1.0)
    for number in range(1, int(factors)):
        total += zoom(images, 1 + number * step)
    return (total + images) * (1 / (int(factors) + 1))


def glass_blur(images: Tensor, noise: ImageNoise, sigma: float, reach: float, iterations: float) -> Tensor:
    """Look through frosted glass: blur, let pixels take the place of near ones, blur again."""
    levels = to_levels(gaussian(images, sigma))
    height, width = levels.shape[-2:]
    for _ in range(int(iterations)):
        source = glass_sources(noise, height, width, int(reach)).to(levels.device)
        taken = levels.flatten(2).gather(2, source[:, None].expand(-1, levels.shape[1], -1))
        levels = taken.view(levels.shape)
    return gaussian(from_levels(levels), sigma)


def glass_sources(noise: ImageNoise, height: int, width: int, reach: int) -> Tensor:
    """Say for each pixel, (N, H * W), which one takes its place in one pass over the image.

    The pass goes from the last pixel to the first and copies to each from a near one, which may have been
    overwritten before. A pixel that reads an overwritten one follows that one's source: doubling
    the length of such chains at every step resolves them all without visiting pixels one by one.
    """
    inside = torch.zeros(height, width, dtype=torch.bool)
    inside[reach + 1 : height - reach + 1, reach + 1 : width - reach + 1] = True
    offset = noise.integers(2, height, width, low=-reach, high=reach)
    here = torch.arange(height * width)
    step = (offset[:, 0] * width + offset[:, 1]).flatten(1) * inside.flatten()
    source = here + step
    overwritten = (source > here) & inside.flatten()[source]
    while overwritten.any():
        overwritten, source = (
            overwritten & overwritten.gather(1, source),
            torch.where(overwritten, source.gather(1, source), source),
        )
    return source
