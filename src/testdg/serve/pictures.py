"""Pictures of requests: checked by their headers, then decoded; and pictures of answers."""

import io
import struct
from typing import NamedTuple

import numpy as np
from PIL import Image
from PIL.JpegImagePlugin import MARKER
from torch import Tensor

from testdg.data.pictures import Unreadable, decode
from testdg.models.canvas import Canvas
from testdg.runs.predictions import Map, Size
from testdg.serve.limits import Limits

_PNG, _JPEG = b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff"
_SCAN = b"\xff\xda"  # starts a scan of a JPEG; does not occur in pixel data
_FRAMES = {*range(0xC0, 0xD0), 0xDE} - {0xC4, 0xC8, 0xCC}  # JPEG segments that contain the size
_PARTS = 8192  # chunks of a PNG, or segments and stray bytes in the header of a JPEG


class DecodedPicture(NamedTuple):
    """A decoded picture at the size of the canvas, and its original height and width."""

    image: Tensor
    size: Size


def check_header(data: bytes, limits: Limits, most: int) -> int | Unreadable:
    """Cost of decoding a PNG or JPEG of at most `most` pixels: pixels times scans; or the reason not to decode it.

    The check takes a few milliseconds at most, so that it can run before the picture waits for a decoder. Its loop
    steps over the same parts as Pillow's, which is slow in Python for files of millions of tiny parts: these are
    refused here.
    """
    try:
        if data.startswith(_PNG):
            size, scans = _png_size(data), 1
        elif data.startswith(_JPEG):
            size, scans = _jpeg_size(data), data.count(_SCAN)
        else:
            return Unreadable("it is neither PNG nor JPEG", "picture-format")
    except (struct.error, KeyError, IndexError):
        return Unreadable("its header is damaged", "damaged-picture")
    height, width = size
    cost = height * width * scans
    if height * width > most:
        return Unreadable(f"it has {width} x {height} px: the limit is {most} pixels", "picture-pixels")
    if scans > limits.scans or cost > limits.scanned:
        limit = f"the limit is {limits.scans}, and {limits.scanned} pixels in all scans"
        return Unreadable(f"it has {scans} scans: {limit}; save it as a baseline JPEG", "picture-scans")
    return cost


def _png_size(data: bytes) -> Size:
    place, size = len(_PNG), (0, 0)
    for _ in range(_PARTS):
        if size != (0, 0) and place + 8 > len(data):
            return size
        length, kind = struct.unpack_from(">I4s", data, place)
        if kind == b"IHDR":  # Pillow uses the last one
            width, height = struct.unpack_from(">II", data, place + 8)
            size = max(size, (height, width), key=lambda one: one[0] * one[1])
        if kind == b"IEND":
            return size
        place += 12 + length
    raise IndexError


def _jpeg_size(data: bytes) -> Size:
    place, size = 2, (0, 0)
    for _ in range(_PARTS):
        first, code = data[place], data[place + 1]
        if first != 0xFF or code in (0x00, 0xFF):  # stray bytes
            place += 1
        elif code == _SCAN[1]:
            return size
        elif MARKER[0xFF00 + code][2] is None:  # a marker without a segment
            place += 2
        else:
            if code in _FRAMES:
                height, width = struct.unpack_from(">HH", data, place + 5)
                size = max(size, (height, width), key=lambda one: one[0] * one[1])
            place += 2 + struct.unpack_from(">H", data, place + 2)[0]
    raise IndexError


def open_picture(data: bytes, canvas: Canvas, channels: int) -> DecodedPicture | Unreadable:
    """Decode a file whose header was checked; or return the reason why that is not possible."""
    try:
        image = decode(data, channels)
        height, width = image.shape[-2:]
        return DecodedPicture(canvas.shrink(image), (height, width))
    except Unreadable as error:
        return error


def index_png(values: Map, classes: int) -> bytes:
    """The class of every pixel as a PNG, 8 bits where that is enough."""
    return encoded(Image.fromarray(values.astype(np.uint8 if classes <= 256 else np.uint16)), "PNG")


def encoded(picture: Image.Image, kind: str, quality: int = 85) -> bytes:
    file = io.BytesIO()
    picture.save(file, kind, quality=quality)
    return file.getvalue()
