"""Pictures from outside: PNG and JPEG alone, looked at before they are decoded; and small ones for the page."""

import base64
import io
from typing import Any, NamedTuple

import numpy as np
from PIL import Image
from torch import Tensor

from testdg.data.pictures import Unreadable, decode, to_pil
from testdg.models import VisionModel
from testdg.models.canvas import Canvas
from testdg.runs.predictor import Map
from testdg.serve.limits import Limits

_SIDE = 72  # pixels of the longer side of a picture on the page
_BEGINNINGS = {b"\x89PNG\r\n\x1a\n": "PNG", b"\xff\xd8\xff": "JPEG"}
_SCAN = b"\xff\xda"  # begins a scan of a JPEG; no pixels look like it


class Picture(NamedTuple):
    """A decoded picture at the size of the canvas, and its own height and width."""

    image: Tensor
    size: tuple[int, int]


def open_picture(data: bytes, limits: Limits, canvas: Canvas, model: VisionModel) -> Picture:
    """Decode the bytes of a PNG or JPEG file; Unreadable with the reason where that is not to be."""
    kind = next((kind for beginning, kind in _BEGINNINGS.items() if data.startswith(beginning)), None)
    if kind is None:
        raise Unreadable("it is neither PNG nor JPEG")
    whole = canvas.size is None or model.task == "segmentation"
    _check_pixels(data, kind, min(limits.pixels, limits.pass_pixels) if whole else limits.pixels)
    if kind == "JPEG" and data.count(_SCAN) > limits.scans:
        raise Unreadable(f"it has more than {limits.scans} scans: save it as an ordinary JPEG")
    image = decode(data, model.channels)
    height, width = image.shape[-2:]
    return Picture(canvas.shrink(image), (height, width))


def _check_pixels(data: bytes, kind: str, most: int) -> None:
    """Refuse by what the head of the file says, before anything of that size is made."""
    try:
        with Image.open(io.BytesIO(data), formats=[kind]) as opened:
            width, height = opened.size
    except Image.DecompressionBombError as error:
        raise Unreadable(f"at most {most} pixels are taken, and it has many more") from error
    except Exception as error:  # a damaged head raises nearly anything
        raise Unreadable(f"it is a damaged {kind}") from error
    if width * height > most:
        raise Unreadable(f"it has {width} x {height} px: at most {most} pixels are taken")


def thumbnail(image: Tensor) -> str:
    """A small picture as a data URL."""
    picture = to_pil(image)
    picture.thumbnail((_SIDE, _SIDE))
    return f"data:image/jpeg;base64,{base64.b64encode(encoded(picture, 'JPEG', quality=85)).decode()}"


def index_png(values: Map, classes: int) -> bytes:
    """The class of every pixel as a PNG, 8 bits where that is enough."""
    return encoded(Image.fromarray(values.astype(np.uint8 if classes <= 256 else np.uint16)), "PNG")


def encoded(picture: Image.Image, kind: str, **options: Any) -> bytes:
    """The bytes of a file."""
    file = io.BytesIO()
    picture.save(file, kind, **options)
    return file.getvalue()
