"""Pictures of any kind as tensors."""

from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from testdg.bounds import check_picture_size, require_range
from testdg.data.decoder import Unreadable as Unreadable
from testdg.data.decoder import open_picture, reason_of
from testdg.data.stream import to_float

_MODES = {1: "L", 3: "RGB"}
_ORIENTATION = 0x0112
_TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
"""What undoes the orientation of the camera, by its number in Exif."""


def read_picture(picture: Any, channels: int = 3) -> Tensor:
    """Any picture as float32 in [0, 1], (channels, H, W); see `decode`."""
    return as_unit(decode(picture, channels))


def decode(picture: Any, channels: int = 3) -> Tensor:
    """Any picture as (channels, H, W), uint8 or float32 in [0, 1]; Unreadable, with the reason, if it is not one.

    A picture is a path, the bytes of a file, a PIL image, or an array or tensor: (H, W, C), (C, H, W) or (H, W), of
    uint8, uint16, or float in [0, 1].
    """
    kind = type(picture).__name__
    if isinstance(picture, np.ndarray | Tensor):
        return _from_values(picture, channels)
    if not isinstance(picture, str | Path | bytes | bytearray | memoryview | Image.Image):
        raise Unreadable(f"a {kind} is not a picture: pass paths, bytes, arrays, tensors or PIL images", "image-type")
    if channels not in _MODES:
        raise Unreadable(f"a model of {channels} channels takes only arrays and tensors, not {kind}", "image-type")
    with open_picture(picture) as opened:
        return _from_pil(opened, channels)


def as_unit(image: Tensor) -> Tensor:
    """A decoded picture as float32 in [0, 1]."""
    return to_float(image) if image.dtype == torch.uint8 else image


def to_pil(image: Tensor) -> Image.Image:
    """A decoded picture as a PIL image in RGB."""
    levels = (as_unit(image) * 255).round().byte().permute(1, 2, 0).numpy()
    return Image.fromarray(levels if levels.shape[2] == 3 else levels[..., 0]).convert("RGB")


def _from_pil(picture: Image.Image, channels: int) -> Tensor:
    turn = None
    with suppress(Exception):  # damaged Exif data are ignored, damaged pixels below are not
        turn = _TURNS.get(picture.getexif().get(_ORIENTATION, 1))
    picture = picture if turn is None else picture.transpose(turn)
    if picture.mode.startswith("I"):  # 16 bits of grey, which Pillow would clip at 255
        return _from_values(np.asarray(picture).clip(0, 65535).astype(np.uint16), channels)
    if picture.mode == "F":
        raise Unreadable("its pixels are floating-point numbers of unknown scale", "picture-kind")
    mode = _MODES[channels]
    levels = np.array(picture if picture.mode == mode else picture.convert(mode))
    return torch.from_numpy(levels.reshape(*levels.shape[:2], channels)).permute(2, 0, 1).contiguous()


def _from_values(values: Any, channels: int) -> Tensor:
    last = isinstance(values, np.ndarray) or values.dtype == torch.uint8
    values = _levels(values)
    if values.ndim not in (2, 3) or values.numel() == 0:
        raise Unreadable(
            f"a picture must be (H, W, {channels}) or ({channels}, H, W); got {tuple(values.shape)}", "image-shape"
        )
    image = _channels_first(values, channels, last) if values.ndim == 3 else values[None]
    image = image.expand(channels, -1, -1) if len(image) == 1 else image
    if len(image) != channels:
        raise Unreadable(f"a picture must have {channels} channels; got shape {tuple(values.shape)}", "image-shape")
    try:
        check_picture_size(*image.shape[1:])
        if image.is_floating_point():
            require_range(float(image.min()), float(image.max()))
    except ValueError as error:
        raise Unreadable(reason_of(error), getattr(error, "code", None)) from error
    image = image.contiguous()
    return image if image.dtype == torch.uint8 else image.float().clamp(0, 1)


def _levels(values: Any) -> Tensor:
    """Values as uint8 or float, the types whose scale is known."""
    if isinstance(values, np.ndarray):
        wide = values.dtype == np.uint16
        try:
            values = torch.from_numpy(values.astype(np.float32) / 65535 if wide else np.ascontiguousarray(values))
        except TypeError:
            raise Unreadable(f"a picture must be uint8, or float in [0, 1]; got {values.dtype}", "image-type") from None
    found: Tensor = values.detach().cpu()
    if found.dtype == torch.uint16:
        return found.float() / 65535
    if found.dtype != torch.uint8 and not found.is_floating_point():
        raise Unreadable(f"a picture must be uint8, or float in [0, 1]; got {found.dtype}", "image-type")
    return found


def _channels_first(values: Tensor, channels: int, last: bool) -> Tensor:
    """Channels first, without transparency; `last` decides if both the first and the last axis could be channels."""
    if values.shape[2] not in {1, channels, 4 if channels == 3 else 1} or (
        values.shape[0] in (1, channels) and not last
    ):
        return values
    return (values[..., :3] if channels == 3 else values).permute(2, 0, 1)
