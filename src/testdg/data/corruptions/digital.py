"""Digital distortion: contrast, saturation, elastic transform, pixelation and JPEG."""

import io
from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from testdg.data.corruptions.filters import from_levels, gaussian_kernel, mirror, reflect, to_levels
from testdg.data.corruptions.generator import ImageNoise
from testdg.data.corruptions.sampling import warp


def contrast(images: Tensor, noise: ImageNoise, factor: float) -> Tensor:
    """Draw every channel towards its mean over the image."""
    height, width = images.shape[-2:]
    levels = to_levels(images).sum(dim=(2, 3), keepdim=True, dtype=torch.int64)  # whole numbers: exact in any order
    mean = levels.float() * (1 / (255 * height * width))
    return (images - mean) * factor + mean


def saturate(images: Tensor, noise: ImageNoise, factor: float, added: float) -> Tensor:
    """Change the saturation of the HSV colour, and keep its hue and value."""
    value, least = images.amax(dim=1, keepdim=True), images.amin(dim=1, keepdim=True)
    saturation = (value - least) / value.clamp(min=1e-6)
    wanted = (saturation * factor + added).clamp(0, 1)
    missing = (value - images) * (wanted / saturation.clamp(min=1e-6))
    red = torch.tensor([0.0, 1.0, 1.0], device=images.device).view(1, 3, 1, 1)  # grey has the hue 0, which is red
    return value - torch.where(saturation > 0, missing, value * wanted * red)


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
    """Say where each pixel of a random affine map comes from: rows and columns, (N, H, W)."""
    x, y, arm = width // 2, height // 2, max(min(height, width) // 3, 1)
    before = np.array([[x + arm, y + arm], [x + arm, y - arm], [x - arm, y - arm]], dtype=np.float64)
    after = before + noise.uniform(3, 2, low=-shift, high=shift).double().numpy()
    corners = np.concatenate([after, np.ones((len(after), 3, 1))], axis=2)
    back = torch.from_numpy(np.linalg.solve(corners, np.broadcast_to(before, after.shape)))[..., None, None]
    column, row = torch.arange(width)[None, :], torch.arange(height)[:, None]
    columns, rows = (back[:, 0, axis] * column + back[:, 1, axis] * row + back[:, 2, axis] for axis in (0, 1))
    return rows, columns


def _displacements(noise: ImageNoise, height: int, width: int, amount: float, sigma: float) -> tuple[Tensor, Tensor]:
    """Draw smooth random ways to move each pixel: across and down, (N, H, W).

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
    """What Pillow makes of each image."""
    pixels = to_levels(images).permute(0, 2, 3, 1).cpu().numpy()
    changed = np.stack([np.asarray(change(Image.fromarray(picture))) for picture in pixels])
    return from_levels(torch.from_numpy(changed).permute(0, 3, 1, 2).to(images.device))
