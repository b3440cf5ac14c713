"""Corrupt a batch of images: the entry point to all corruptions."""

from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor

from testdg.data.corruptions import functions, spatter
from testdg.data.corruptions.filters import from_levels, to_levels
from testdg.data.corruptions.generator import ImageNoise
from testdg.data.corruptions.parameters import EXTRA, STANDARD_ORDER, ParameterSet, parameters_of
from testdg.data.corruptions.textures import FrostTextures
from testdg.errors import UserError

# A corruption is the function of its name.
_FUNCTIONS: dict[str, Callable[..., Tensor]] = {
    name: getattr(functions if hasattr(functions, name) else spatter, name) for name in (*STANDARD_ORDER, *EXTRA)
}

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
    positions = [int(index) for index in (indices.tolist() if isinstance(indices, Tensor) else indices)]
    if len(positions) != len(images):
        message = f"indices must be one per image; got {len(positions)} for {len(images)} images"
        raise UserError(message, code="wrong-indices")
    function = _FUNCTIONS[name]
    if name == "frost":
        function = partial(function, textures=frost or FrostTextures.procedural())
    chunk = _CHUNK_CPU if images.device.type == "cpu" else _CHUNK_ACCELERATOR  # limits memory
    size = max(1, chunk // images[0].numel()) if len(images) else 1
    result = torch.empty_like(images)
    for start in range(0, len(images), size):
        part = slice(start, start + size)
        image_noise = ImageNoise(seed, name, severity, positions[part])
        result[part] = to_levels(function(from_levels(images[part]), image_noise, *values))
    return result


def _check_shape(images: Tensor) -> None:
    if images.ndim != 4 or images.shape[1] != 3 or 0 in images.shape[2:]:
        raise UserError(f"images must have the shape (N, 3, H, W); got {tuple(images.shape)}", code="image-shape")
