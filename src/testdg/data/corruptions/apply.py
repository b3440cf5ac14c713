"""Corrupt a batch of images: the one way in to all corruptions."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import TypedDict, Unpack

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


class CorruptionSettings(TypedDict, total=False):
    """What `corrupt` hands on to `corrupt_uint8`."""

    seed: int
    parameters: ParameterSet | str | None
    frost: FrostTextures | None


def corrupt(
    images: Tensor, name: str, severity: int, *, indices: Tensor | Sequence[int], **settings: Unpack[CorruptionSettings]
) -> Tensor:
    """Corrupt images, float in [0, 1], (N, 3, H, W); the result's values are multiples of 1/255."""
    return corrupt_uint8(_levels_of(images), name, severity, indices=indices, **settings).to(images.dtype) / 255


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
    """Corrupt uint8 images, (N, 3, H, W), as `corrupt` does; streams store their images so.

    `indices` are the images' positions in the data set: random corruptions depend on them, not on the batch.
    """
    if images.dtype != torch.uint8:
        raise UserError(
            f"images must be uint8; got {images.dtype}: use corrupt() for float images in [0, 1]", code="image-type"
        )
    _check_shape(images)
    settings = parameters_of(name, severity, parameters, min(images.shape[-2:]))
    positions = _positions(indices, len(images))
    function = _FUNCTIONS[name]
    if name == "frost":
        function = partial(function, textures=frost or FrostTextures.procedural())
    chunk = _CHUNK_CPU if images.device.type == "cpu" else _CHUNK_ACCELERATOR  # so that memory stays bounded
    size = max(1, chunk // images[0].numel()) if len(images) else 1
    result = torch.empty_like(images)
    for start in range(0, len(images), size):
        part = slice(start, start + size)
        image_noise = ImageNoise(seed, name, severity, positions[part])
        result[part] = to_levels(function(from_levels(images[part]), image_noise, *settings))
    return result


def _positions(indices: Tensor | Sequence[int], count: int) -> list[int]:
    """Check the images' positions in the data set."""
    positions = [int(index) for index in (indices.tolist() if isinstance(indices, Tensor) else indices)]
    if len(positions) != count:
        raise UserError(
            f"indices must name one position per image; got {len(positions)} for {count} images", code="wrong-indices"
        )
    return positions


def _levels_of(images: Tensor) -> Tensor:
    """Check float images and round them to uint8 levels."""
    if not images.is_floating_point():
        raise UserError(
            f"images must be float in [0, 1]; got {images.dtype}: divide by 255, or use corrupt_uint8()",
            code="image-type",
        )
    _check_shape(images)
    if images.numel():
        low, high = (value.item() for value in images.aminmax())
        if not (low >= 0 and high <= 1):
            raise UserError(f"images must be in [0, 1]; got min {low}, max {high}: divide by 255", code="image-range")
    return (images.float() * 255).round().to(torch.uint8)


def _check_shape(images: Tensor) -> None:
    """Refuse what is not a batch of RGB images."""
    if images.ndim != 4 or images.shape[1] != 3 or 0 in images.shape[2:]:
        raise UserError(f"images must have the shape (N, 3, H, W); got {tuple(images.shape)}", code="image-shape")
