"""Noise of the sensor: gaussian, shot, impulse and speckle."""

from torch import Tensor

from testdg.data.corruptions.generator import ImageNoise


def gaussian_noise(images: Tensor, noise: ImageNoise, scale: float) -> Tensor:
    """Add normal noise."""
    return images + noise.normal(*images.shape[1:], scale=scale).to(images.device)


def shot_noise(images: Tensor, noise: ImageNoise, photons: float) -> Tensor:
    """Count photons: the fewer a white pixel receives, the grainier."""
    return noise.poisson(images * photons).to(images.device) * (1 / photons)


def impulse_noise(images: Tensor, noise: ImageNoise, amount: float) -> Tensor:
    """Set a share of the values to black or white, half each."""
    draw = noise.uniform(*images.shape[1:]).to(images.device)
    peppered = images.masked_fill(draw < amount / 2, 0.0)
    return peppered.masked_fill(draw >= 1 - amount / 2, 1.0)


def speckle_noise(images: Tensor, noise: ImageNoise, scale: float) -> Tensor:
    """Add normal noise in proportion to the value."""
    return images + images * noise.normal(*images.shape[1:], scale=scale).to(images.device)
