"""Opening pictures, and decoding image files in worker processes, so that a stream keeps an accelerator busy.

Each worker is this module run as a program, which therefore does not import torch. It reads one request per line and
writes, for each path in it, a line (null, or why the file cannot be read) and the pixels. It ends when its input ends,
which the death of its parent causes, too.
"""

import io
import json
import os
import signal
import subprocess
import sys
import threading
import warnings
import weakref
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError

from testdg.bounds import MOST_PIXELS, check_file, check_picture_size
from testdg.errors import UserError, visible

FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "TIFF", "GIF")
"""Formats of single pictures. Other decoders are never tried: one of them starts a program."""
SUFFIXES = (".jpeg", ".jpg", ".png", ".webp", ".bmp", ".tif", ".tiff", ".gif")
DATA_SET_FORMATS = ("JPEG", "PNG")
DATA_SET_SUFFIXES = (".jpeg", ".jpg", ".png")
_MOST_WORKERS = 16


class Crop(NamedTuple):
    """The size that pictures are read at: the short edge is resized to `edge`, then a central square is cut."""

    edge: int
    side: int

    @property
    def image_bytes(self) -> int:
        return 3 * self.side * self.side


IMAGENET_CROP = Crop(edge=256, side=224)


class Unreadable(UserError):
    """A picture that cannot be used; the message is the reason."""

    code = "unreadable-picture"


@contextmanager
def open_picture(
    picture: str | Path | bytes | bytearray | memoryview | Image.Image,
    formats: tuple[str, ...] = FORMATS,
    most: int = MOST_PIXELS,
) -> Iterator[Image.Image]:
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
            opened = Image.open(picture if isinstance(picture, str | Path) else io.BytesIO(picture), formats=formats)
        with opened as image:
            check_picture_size(image.height, image.width, most)
            yield image
    except UserError:
        raise
    except UnidentifiedImageError:
        raise Unreadable("no image format fits it") from None
    except Exception as error:  # a damaged picture raises nearly anything
        raise Unreadable(reason_of(error)) from error


@contextmanager
def open_image_file(path: Path) -> Iterator[Image.Image]:
    """Open a JPEG or PNG file of a data set; errors name the file."""
    try:
        with open_picture(path, DATA_SET_FORMATS) as picture:
            yield picture
    except Unreadable as error:
        raise Unreadable(f"{path} cannot be read as an image: {error}; restore the file") from error


def read_levels(path: Path) -> NDArray[np.uint8]:
    """Read an image file of a data set as RGB, (H, W, 3)."""
    with open_image_file(path) as picture:
        return np.array(picture.convert("RGB"))


def reason_of(error: BaseException) -> str:
    """The reason of an error in one line, without control characters and file names."""
    text = getattr(error, "strerror", None) or str(error)
    return visible(" ".join(str(text).split())) or type(error).__name__


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


def decode_file(path: str | Path, crop: Crop = IMAGENET_CROP) -> bytes | str:
    """Read the pixels of an image file, (3, side, side) uint8; or, as text, the reason why it cannot be read."""
    try:
        with open_picture(path, DATA_SET_FORMATS) as picture:
            return np.asarray(fit(picture, crop)).transpose(2, 0, 1).tobytes()
    except UserError as error:
        return str(error)


def serve() -> None:
    """Answer requests until the input ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent receives it, too, and decides
    warnings.simplefilter("ignore")
    for line in sys.stdin.buffer:
        request = json.loads(line)
        for path in request["paths"]:
            pixels = decode_file(path, Crop(*request["crop"]))
            why = pixels if isinstance(pixels, str) else None
            sys.stdout.buffer.write(json.dumps(why).encode() + b"\n")
            if isinstance(pixels, bytes) and request["pixels"]:
                sys.stdout.buffer.write(pixels)
            sys.stdout.buffer.flush()


class Decoder:
    """Worker processes that start when they are first needed, each with a thread that waits for it."""

    def __init__(self, workers: int | None = None, crop: Crop = IMAGENET_CROP) -> None:
        self.crop = crop
        self.workers = workers or min(os.cpu_count() or 1, _MOST_WORKERS)
        self._threads = ThreadPoolExecutor(self.workers, thread_name_prefix="decoder")
        self._own = threading.local()
        self._started: list[subprocess.Popen[bytes]] = []
        self.close = weakref.finalize(self, _close, self._threads, self._started)

    def submit(self, paths: Sequence[str], *, pixels: bool = True) -> list[Future[list[bytes | str]]]:
        """Request files; each future returns a share of them, in order: pixels, or the reason for none."""
        size = -(-len(paths) // self.workers) or 1
        shares = [list(paths[start : start + size]) for start in range(0, len(paths), size)]
        return [self._threads.submit(self._ask, share, pixels) for share in shares]

    def _ask(self, paths: list[str], pixels: bool) -> list[bytes | str]:
        """Send a request to the worker of this thread and read its answers; if it dies, the error names the file."""
        worker = getattr(self._own, "worker", None)
        if worker is None:
            command = [sys.executable, "-P", "-m", "testdg.data.decoder"]
            environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
            worker = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment)
            self._own.worker = worker
            self._started.append(worker)
        assert worker.stdin is not None
        assert worker.stdout is not None
        answers: list[bytes | str] = []
        with suppress(BrokenPipeError):  # then there is no answer to the first path
            worker.stdin.write(json.dumps({"paths": paths, "crop": self.crop, "pixels": pixels}).encode() + b"\n")
            worker.stdin.flush()
        for path in paths:
            line = worker.stdout.readline()
            why = json.loads(line) if line.endswith(b"\n") else None
            size = self.crop.image_bytes if pixels and why is None else 0
            content = worker.stdout.read(size)
            if not line.endswith(b"\n") or len(content) < size:
                self._own.worker = None
                worker.kill()
                message = (
                    f"a decoding process died (exit code {worker.wait()}) while it read {path}: check the file and"
                )
                raise UserError(f"{message} the free memory, and start the run again", code="worker-died")
            answers.append(content if why is None else why)
        return answers


def _close(threads: ThreadPoolExecutor, started: list[subprocess.Popen[bytes]]) -> None:
    """End the workers without waiting for the threads, since one of them may be the caller."""
    threads.shutdown(wait=False, cancel_futures=True)
    for worker in started:
        worker.kill()
        for pipe in (worker.stdin, worker.stdout):
            with suppress(BrokenPipeError):
                if pipe is not None:
                    pipe.close()
        worker.wait()


if __name__ == "__main__":
    serve()
