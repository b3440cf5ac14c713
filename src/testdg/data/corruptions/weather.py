"""Weather: snow, frost, fog and brightness."""

import torch
from torch import Tensor

from testdg.data.corruptions.filters import from_levels, grey, to_levels
from testdg.data.corruptions.generator import ImageNoise, plasma
from testdg.data.corruptions.sampling import motion, zoom
from testdg.data.corruptions.textures import FrostTextures


def snow(
    images: Tensor,
    noise: ImageNoise,
    mean: float,
    scale: float,
    flake: float,
    threshold: float,
    radius: float,
    sigma: float,
    kept: float,
) -> Tensor:
    """Bleach the image and let driven flakes fall over it, from above and below."""
    field = noise.normal(1, *images.shape[-2:], mean=mean, scale=scale).to(images.device)
    flakes = zoom(field, flake)
    flakes = from_levels(to_levels(flakes.masked_fill(flakes < threshold, 0.0)))
    driven = motion(flakes, radius, sigma, noise.uniform(low=-135.0, high=-45.0))
    layer = from_levels(to_levels(driven))
    bleached = torch.maximum(images, grey(images) * 1.5 + 0.5)
    return images * kept + bleached * (1 - kept) + layer + layer.flip(-1, -2)


def frost(
    images: Tensor, noise: ImageNoise, kept: float, strength: float, scale: float, *, textures: FrostTextures
) -> Tensor:
    """Lay a random cut of a frost texture over the image."""
    cuts = textures.cut(noise, *images.shape[-2:], scale=scale).to(images.device)
    return images * kept + from_levels(cuts) * strength


def fog(images: Tensor, noise: ImageNoise, strength: float, decay: float) -> Tensor:
    """Add a cloud and lower the exposure, so that the brightest value stays in range."""
    height, width = images.shape[-2:]
    side = 1 << (max(height, width) - 1).bit_length()
    cloud = plasma(noise, side, decay)[:, None, :height, :width].to(images.device)
    brightest = images.amax(dim=(1, 2, 3), keepdim=True)
    return (images + cloud * strength) * (brightest / (brightest + strength))


def brightness(images: Tensor, noise: ImageNoise, added: float) -> Tensor:
    """Raise the value of the HSV colour, and keep its hue and saturation."""
    value = images.amax(dim=1, keepdim=True)
    raised = (value + added).clamp(0, 1)
    return torch.where(value > 0, images * (raised / value.clamp(min=1e-6)), raised)
