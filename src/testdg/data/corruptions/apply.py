"""All corruptions (spatter is in a module of its own), and the entry points that apply them to a batch."""

import io
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from testdg.data.corruptions.filters import (
    correlate,
    disk_kernel,
    from_levels,
    gaussian,
    gaussian_kernel,
    grey,
    mirror,
    motion,
    reflect,
    to_levels,
    warp,
    zoom,
)
from testdg.data.corruptions.generator import ImageNoise, plasma
from testdg.data.corruptions.parameters import ParameterSet, parameters_of
from testdg.data.corruptions.spatter import spatter
from testdg.data.corruptions.textures import FrostTextures
from testdg.errors import UserError


def gaussian_noise(images: Tensor, noise: ImageNoise, scale: float) -> Tensor:
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


def defocus_blur(images: Tensor, noise: ImageNoise, radius: float, alias: float) -> Tensor:
    """Convolve with the disk of a lens out of focus."""
    return correlate(images, disk_kernel(radius, alias), reflect)


def gaussian_blur(images: Tensor, noise: ImageNoise, sigma: float) -> Tensor:
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
    """For each pixel, (N, H * W), the one that takes its place in one pass over the image.

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


def snow(
    images: Tensor,
    noise: ImageNoise,
    mean: float,
    scale: float,
    flake: float,
    threshold: float,
    radius: float,
    sigma: float,
    share: float,
) -> Tensor:
    """Bleach the image and let driven flakes fall over it, from above and below."""
    field = noise.normal(1, *images.shape[-2:], mean=mean, scale=scale).to(images.device)
    flakes = zoom(field, flake)
    flakes = from_levels(to_levels(flakes.masked_fill(flakes < threshold, 0.0)))
    driven = motion(flakes, radius, sigma, noise.uniform(low=-135.0, high=-45.0))
    layer = from_levels(to_levels(driven))
    bleached = torch.maximum(images, grey(images) * 1.5 + 0.5)
    return images * share + bleached * (1 - share) + layer + layer.flip(-1, -2)


def frost(
    images: Tensor, noise: ImageNoise, share: float, strength: float, scale: float, *, textures: FrostTextures
) -> Tensor:
    """Lay a random cut of a frost texture over the image."""
    cuts = textures.cut(noise, *images.shape[-2:], scale=scale).to(images.device)
    return images * share + from_levels(cuts) * strength


def fog(images: Tensor, noise: ImageNoise, strength: float, decay: float) -> Tensor:
    """Add a cloud and lower the exposure, so that the brightest value stays in range."""
    height, width = images.shape[-2:]
    side = 1 << (max(height, width) - 1).bit_length()
    cloud = plasma(noise, side, decay)[:, None, :height, :width].to(images.device)
    brightest = images.amax(dim=(1, 2, 3), keepdim=True)
    return (images + cloud * strength) * (brightest / (brightest + strength))


def brightness(images: Tensor, noise: ImageNoise, added: float) -> Tensor:
    """Raise the value of the HSV colour, and preserve its hue and saturation."""
    value = images.amax(dim=1, keepdim=True)
    raised = (value + added).clamp(0, 1)
    return torch.where(value > 0, images * (raised / value.clamp(min=1e-6)), raised)


def contrast(images: Tensor, noise: ImageNoise, factor: float) -> Tensor:
    """Draw every channel towards its mean over the image."""
    height, width = images.shape[-2:]
    # Whole numbers: exact in any order.
    levels = to_levels(images).sum(dim=(2, 3), keepdim=True, dtype=torch.int64)
    mean = levels.float() * (1 / (255 * height * width))
    return (images - mean) * factor + mean


def saturate(images: Tensor, noise: ImageNoise, factor: float, added: float) -> Tensor:
    """Change the saturation of the HSV colour, and preserve its hue and value."""
    value, least = images.amax(dim=1, keepdim=True), images.amin(dim=1, keepdim=True)
    saturation = (value - least) / value.clamp(min=1e-6)
    target = (saturation * factor + added).clamp(0, 1)
    missing = (value - images) * (target / saturation.clamp(min=1e-6))
    # Grey has the hue 0, which is red.
    red = torch.tensor([0.0, 1.0, 1.0], device=images.device).view(1, 3, 1, 1)
    return value - torch.where(saturation > 0, missing, value * target * red)


def elastic_transform(images: Tensor, noise: ImageNoise, amount: float, smoothness: float, shift: float) -> Tensor:
    """Move three points of the image, then every pixel a little; all lengths are relative to the side."""
    height, width = images.shape[-2:]
    side = min(height, width)
    moved = warp(images, *_affine_positions(noise, height, width, shift * side), reflect)
    if not amount:
        return moved
    across, down = _displacements(noise, height, width, amount * side, smoothness * side)
    rows, columns = torch.arange(height)[:, None], torch.arange(width)[None, :]
    return warp(moved, rows + down, columns + across, mirror)


def _affine_positions(noise: ImageNoise, height: int, width: int, shift: float) -> tuple[Tensor, Tensor]:
    """Rows and columns, (N, H, W), that the pixels of a random affine map are read from."""
    x, y, arm = width // 2, height // 2, max(min(height, width) // 3, 1)
    before = np.array([[x + arm, y + arm], [x + arm, y - arm], [x - arm, y - arm]], dtype=np.float64)
    after = before + noise.uniform(3, 2, low=-shift, high=shift).double().numpy()
    corners = np.concatenate([after, np.ones((len(after), 3, 1))], axis=2)
    solved = np.linalg.solve(corners, np.broadcast_to(before, after.shape))
    back = torch.from_numpy(solved)[..., None, None]
    column, row = torch.arange(width)[None, :], torch.arange(height)[:, None]
    columns = back[:, 0, 0] * column + back[:, 1, 0] * row + back[:, 2, 0]
    rows = back[:, 0, 1] * column + back[:, 1, 1] * row + back[:, 2, 1]
    return rows, columns


def _displacements(noise: ImageNoise, height: int, width: int, amount: float, sigma: float) -> tuple[Tensor, Tensor]:
    """Draw smooth random displacements of each pixel, across and down, (N, H, W).

    The fields are smoothed one by one, by matrices: an image's field does not depend on the batch.
    """
    fields = noise.uniform(2, height, width, low=-1.0, high=1.0).double().numpy()
    smooth = _blur_matrix(height, sigma) @ fields @ _blur_matrix(width, sigma).T
    across, down = torch.from_numpy(smooth * amount).unbind(dim=1)
    return across, down


def _blur_matrix(size: int, sigma: float) -> NDArray[np.float64]:
    """Fold the blur of a mirrored axis, by a bell curve cut at three sigma, into one matrix."""
    radius = int(3 * sigma + 0.5)
    here = np.arange(size)
    matrix = np.zeros((size, size))
    for offset, weight in zip(range(-radius, radius + 1), gaussian_kernel(sigma, radius).tolist(), strict=True):
        matrix[here, mirror(torch.from_numpy(here + offset), size).numpy()] += weight
    return matrix


def pixelate(images: Tensor, noise: ImageNoise, scale: float) -> Tensor:
    """Shrink with a box filter and enlarge again, on the CPU."""
    (height, width), box = images.shape[-2:], Image.Resampling.BOX
    small = max(int(width * scale), 1), max(int(height * scale), 1)
    return _one_by_one(images, lambda picture: picture.resize(small, box).resize((width, height), box))


def jpeg_compression(images: Tensor, noise: ImageNoise, quality: float) -> Tensor:
    """Encode as JPEG and decode, on the CPU."""

    def code(picture: Image.Image) -> Image.Image:
        buffer = io.BytesIO()
        picture.save(buffer, "JPEG", quality=int(quality))
        return Image.open(buffer)

    return _one_by_one(images, code)


def _one_by_one(images: Tensor, change: Callable[[Image.Image], Image.Image]) -> Tensor:
    """Apply a function of Pillow to each image."""
    pixels = to_levels(images).permute(0, 2, 3, 1).cpu().numpy()
    changed = np.stack([np.asarray(change(Image.fromarray(picture))) for picture in pixels])
    return from_levels(torch.from_numpy(changed).permute(0, 3, 1, 2).to(images.device))


_FUNCTIONS: dict[str, Callable[..., Tensor]] = {
    function.__name__: function
    for function in (
        gaussian_noise, shot_noise, impulse_noise, defocus_blur, glass_blur, motion_blur, zoom_blur, snow, frost, fog,
        brightness, contrast, elastic_transform, pixelate, jpeg_compression, speckle_noise, gaussian_blur, spatter,
        saturate,
    )
}  # fmt: skip

# Values corrupted at a time: what the cache of a core holds, or what keeps an accelerator busy.
_CHUNK_CPU, _CHUNK_ACCELERATOR = 1 << 19, 1 << 25


def corrupt(
    images: Tensor,
    name: str,
    severity: int,
    *,
    indices: Tensor | Sequence[int],
    seed: int = 0,
    parameters: ParameterSet | str | None = None,
    frost: FrostTextures | None = None,
) -> Tensor:
    """Corrupt images, float in [0, 1], (N, 3, H, W); the values of the result are multiples of 1/255."""
    if not images.is_floating_point():
        message = f"images must be float in [0, 1]; got {images.dtype}: divide by 255, or use corrupt_uint8()"
        raise UserError(message, code="image-type")
    _check_shape(images)
    if images.numel():
        low, high = (value.item() for value in images.aminmax())
        if not (low >= 0 and high <= 1):
            message = f"images must be in [0, 1]; got min {low}, max {high}: divide by 255"
            raise UserError(message, code="image-range")
    levels = (images.float() * 255).round().to(torch.uint8)
    corrupted = corrupt_uint8(levels, name, severity, indices=indices, seed=seed, parameters=parameters, frost=frost)
    return corrupted.to(images.dtype) / 255


def corrupt_uint8(
    images: Tensor,
    name: str,
    severity: int,
    *,
    indices: Tensor | Sequence[int],
    seed: int = 0,
    parameters: ParameterSet | str | None = None,
    frost: FrostTextures | None = None,
) -> Tensor:
    """Corrupt uint8 images, (N, 3, H, W), as `corrupt` does.

    `indices` are the positions of the images in the data set: random numbers depend on them, not on the batch.
    """
    if images.dtype != torch.uint8:
        message = f"images must be uint8; got {images.dtype}: use corrupt() for float images in [0, 1]"
        raise UserError(message, code="image-type")
    _check_shape(images)
    values = parameters_of(name, severity, parameters, min(images.shape[-2:]))
    positions = indices.tolist() if isinstance(indices, Tensor) else [int(index) for index in indices]
    if len(positions) != len(images):
        message = f"indices must be one per image; got {len(positions)} for {len(images)} images"
        raise UserError(message, code="wrong-indices")
    function = _FUNCTIONS[name]
    if name == "frost":
        function = partial(function, textures=frost or FrostTextures.procedural())

    def change(part: Tensor, place: slice) -> Tensor:
        return function(part, ImageNoise(seed, name, severity, positions[place]), *values)

    return in_chunks(images, change)


def in_chunks(images: Tensor, change: Callable[[Tensor, slice], Tensor]) -> Tensor:
    """Change uint8 images a few at a time, which limits memory; `change` gets them as floats, with their place."""
    chunk = _CHUNK_CPU if images.device.type == "cpu" else _CHUNK_ACCELERATOR
    size = max(1, chunk // max(1, images[:1].numel()))
    result = torch.empty_like(images)
    for start in range(0, len(images), size):
        place = slice(start, min(start + size, len(images)))
        result[place] = to_levels(change(from_levels(images[place]), place))
    return result


def _check_shape(images: Tensor) -> None:
    if images.ndim != 4 or images.shape[1] != 3 or 0 in images.shape[2:]:
        raise UserError(f"images must have the shape (N, 3, H, W); got {tuple(images.shape)}", code="image-shape")
