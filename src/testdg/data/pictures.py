"""Opening of picture files: JPEG and PNG alone, ordinary files, of a size that fits into memory."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from PIL import Image

from testdg.bounds import check_file, check_picture_size

_FORMATS = ("JPEG", "PNG")  # other decoders are not tried: one of them starts a program


@contextmanager
def open_picture(path: str | Path) -> Iterator[Image.Image]:
    """Open a picture after a look at its header; what is out of bounds raises ValueError with the reason."""
    check_file(path)
    with Image.open(path, formats=_FORMATS) as picture:
        check_picture_size(picture.height, picture.width)
        yield picture
