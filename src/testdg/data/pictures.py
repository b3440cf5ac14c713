"""Opening pictures, the files of data sets at the size of a crop, and pictures of any kind as tensors."""

import io
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError
from torch import Tensor

from testdg.bounds import check_file, check_picture_size, require_range
from testdg.data.stream import to_float
from testdg.errors import UserError, visible

FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "TIFF", "GIF")
"""Formats of single pictures. Other decoders are never tried: one of them starts a program."""
SUFFIXES = (".jpeg", ".jpg", ".png", ".webp", ".bmp", ".tif", ".tiff", ".gif")
DATA_SET_FORMATS = ("JPEG", "PNG")
DATA_SET_SUFFIXES = (".jpeg", ".jpg", ".png")

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

Encoded = str | Path | bytes | bytearray | memoryview | Image.Image
Array = NDArray[np.generic]


class Unreadable(UserError):
    """A picture that cannot be used; the message is the reason."""

    code = "unreadable-picture"


class Crop(NamedTuple):
    """The size that pictures are read at: the short edge is resized to `edge`, then a central square is cut."""

    edge: int
    side: int


IMAGENET_CROP = Crop(edge=256, side=224)


@contextmanager
def open_picture(picture: Encoded, formats: tuple[str, ...] = FORMATS) -> Iterator[Image.Image]:
    """Open a picture after checks of its file, its format and its number of pixels, before any pixel is decoded.

    This is the only place that opens pictures. Any failure, also one in the body of `with`, becomes Unreadable with the
    reason alone: the caller knows the name.
    """
    try:
        if isinstance(picture, str | Path):
            check_file(picture)
        if isinstance(picture, Image.Image):
            opened: AbstractContextManager[Image.Image] = nullcontext(picture)
        else:
            file = picture if isinstance(picture, str | Path) else io.BytesIO(picture)
            opened = Image.open(file, formats=formats)
        with opened as image:
            check_picture_size(image.height, image.width)
            yield image
    except UserError:
        raise
    except UnidentifiedImageError:
        raise Unreadable("no image format fits it") from None
    except Exception as error:  # a damaged picture raises nearly anything
        raise Unreadable(reason_of(error)) from error


def reason_of(error: BaseException) -> str:
    """The reason of an error in one line, without control characters and file names."""
    text = getattr(error, "strerror", None) or str(error)
    return visible(" ".join(str(text).split())) or type(error).__name__


@contextmanager
def open_image_file(path: Path, remedy: str = "restore the file") -> Iterator[Image.Image]:
    """Open a JPEG or PNG file of a data set; errors name the file."""
    try:
        with open_picture(path, DATA_SET_FORMATS) as picture:
            yield picture
    except Unreadable as error:
        raise Unreadable(f"{path} cannot be read as an image: {error}; {remedy}") from error


def read_image(path: Path, crop: Crop | None = None, remedy: str = "restore the file") -> Tensor:
    """Read an image file of a data set as RGB, uint8, (3, H, W), at the size of a crop or at its own."""
    with open_image_file(path, remedy) as picture:
        levels = np.array(picture.convert("RGB") if crop is None else fit(picture, crop))
    return torch.from_numpy(levels).permute(2, 0, 1).contiguous()


def fit(picture: Image.Image, crop: Crop = IMAGENET_CROP) -> Image.Image:
    """An RGB picture at the size of a crop: unchanged if it has that size, else resized (bilinear) and cut."""
    picture, (edge, side) = picture.convert("RGB"), crop
    if picture.size == (side, side):
        return picture
    short = min(picture.size)
    width, height = (edge * length // short for length in picture.size)
    left, top = round((width - side) / 2), round((height - side) / 2)
    resized = picture.resize((width, height), Image.Resampling.BILINEAR)
    return resized.crop((left, top, left + side, top + side))


def read_picture(picture: object, channels: int = 3) -> Tensor:
    """Any picture as float32 in [0, 1], (channels, H, W); see `decode`."""
    return as_unit(decode(picture, channels))


def decode(picture: object, channels: int = 3) -> Tensor:
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
    levels = levels.reshape(*levels.shape[:2], channels)
    return torch.from_numpy(levels).permute(2, 0, 1).contiguous()


def _from_values(values: Array | Tensor, channels: int) -> Tensor:
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


def _levels(values: Array | Tensor) -> Tensor:
    """Values as uint8 or float, the types whose scale is known."""
    if isinstance(values, np.ndarray):
        if values.dtype == np.uint16:
            return torch.from_numpy(values.astype(np.float32) / 65535)
        try:
            values = torch.from_numpy(np.ascontiguousarray(values))
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
    is_last = values.shape[2] in (1, channels) or (channels == 3 and values.shape[2] == 4)
    is_first = values.shape[0] in (1, channels)
    if not is_last or (is_first and not last):
        return values
    return (values[..., :3] if channels == 3 else values).permute(2, 0, 1)
