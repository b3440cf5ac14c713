"""Where pictures come from: a folder, a list, a video, standard input, or any iterable."""

import os
import re
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sized
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor

from testdg.bounds import check_file, check_picture_size, read_text
from testdg.data.decoder import SUFFIXES
from testdg.errors import UserError, unknown

ORDERS = ("name", "time")
LISTS = ("", ".txt", ".lst", ".list")
_POLL = 0.5  # seconds between two looks at a growing folder
_SETTLED = 2.0  # seconds without a change after which a file counts as complete


class Frame(NamedTuple):
    """A picture that is not decoded yet: its name in tables, and a path, an array, a tensor or a PIL image."""

    file: str
    picture: Any


class Frames:
    """Pictures in order; None stands for "nothing now, perhaps later" where they are still being made."""

    total: int | None = None
    """How many there are, where that is known."""
    live = False
    """Whether somebody waits for predictions while pictures still come in: a batch then does not wait for long."""
    ahead = True
    """Whether they may be read in another thread, before they are asked for."""

    def __iter__(self) -> Iterator[Frame | None]:
        """Give the pictures."""
        raise NotImplementedError

    def place(self, file: str) -> Path | None:
        """Where a picture lies, by its name; None where it lies in no file of its own."""
        return None

    def there(self, file: str) -> bool:
        """Whether a picture can be had again."""
        return (path := self.place(file)) is None or path.is_file()

    def remarks(self) -> list[str]:
        """What went wrong on the way, in words."""
        return []


class PictureIterable(Frames):
    """Tensors, arrays, PIL images, bytes or paths of the caller's; a batch, (N, C, H, W), counts as N pictures."""

    ahead = False

    def __init__(self, pictures: Iterable[Any]) -> None:
        self.pictures = pictures
        self.total = len(pictures) if isinstance(pictures, Sized) else None

    def __iter__(self) -> Iterator[Frame | None]:
        """Name them by their places, those in files by their paths."""
        number = 0
        for given in self.pictures:
            for picture in given if isinstance(given, np.ndarray | Tensor) and given.ndim == 4 else (given,):
                yield Frame(str(picture) if isinstance(picture, str | Path) else f"{number:06}", picture)
                number += 1


class PictureFolder(Frames):
    """The pictures of a folder and the folders in it; with `follow`, also those that are still to come.

    `follow` ends after `idle` seconds without a new one, if that is given. What lies in `without` is left out.
    """

    def __init__(
        self, path: Path, order: str = "name", *, follow: bool = False, idle: float | None = None,
        without: Path | None = None,
    ) -> None:  # fmt: skip
        if order not in ORDERS:
            raise unknown("order", order, ORDERS)
        self.path, self.order, self.live, self.idle = path, order, follow, idle
        self.without = None if without is None else without.resolve()
        self._first = None if follow else self._names()
        self.total = None if self._first is None else len(self._first)
        if self.total == 0:
            raise UserError(f"{path} holds no pictures ({', '.join(SUFFIXES)}): name another folder", code="no-images")

    def __iter__(self) -> Iterator[Frame | None]:
        """Give them by name or by time."""
        if not self.live:
            names, self._first = self._first or self._names(), None
            yield from (Frame(name, self.path / name) for name in names)
            return
        seen: set[str] = set()
        sizes: dict[str, tuple[int, float]] = {}
        last = time.monotonic()
        while self.idle is None or time.monotonic() - last < self.idle:
            new = [name for name in self._names(seen) if self._complete(name, sizes)]
            seen.update(new)
            yield from (Frame(name, self.path / name) for name in new)
            last = time.monotonic() if new else last
            yield None
            time.sleep(_POLL)

    def _complete(self, name: str, sizes: dict[str, tuple[int, float]]) -> bool:
        """Whether a file is written to its end: it did not change since the last look, or for some seconds."""
        try:
            about = (self.path / name).stat()
        except OSError:
            return False
        now = (about.st_size, about.st_mtime)
        if sizes.get(name) == now or time.time() - about.st_mtime > _SETTLED:
            sizes.pop(name, None)
            return True
        sizes[name] = now
        return False

    def _names(self, but: set[str] | frozenset[str] = frozenset()) -> list[str]:
        found = []
        for place, folders, files in os.walk(self.path):
            folders[:] = [f for f in folders if not f.startswith(".") and (Path(place, f).resolve() != self.without)]
            inside = Path(place).relative_to(self.path).as_posix()
            start = "" if inside == "." else f"{inside}/"
            found += [name for file in files if is_picture(file) and (name := start + file) not in but]
        if self.order == "name":
            return sorted(found, key=natural)
        return sorted(found, key=lambda name: (_changed(self.path / name), natural(name)))

    def place(self, file: str) -> Path | None:
        """Where a picture lies."""
        return self.path / file


class PictureList(Frames):
    """Pictures that a list names, one path per line, beside the list or from here."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            lines = [line.rstrip("\r\n") for line in read_text(path).split("\n")]
        except (OSError, ValueError) as error:
            raise UserError(
                f"{path} is not a list that can be read: expected a path per line ({error})", code="unreadable-list"
            ) from error
        self.names = [line for line in lines if line.strip()]
        self.total = len(self.names)
        if not self.names:
            raise UserError(f"{path} is empty: expected the path of a picture per line", code="empty-list")

    def __iter__(self) -> Iterator[Frame | None]:
        """Give them in the order of the list."""
        yield from (Frame(name, self.place(name)) for name in self.names)

    def place(self, file: str) -> Path:
        """Where a picture lies."""
        beside = self.path.parent / file
        return beside if beside.is_file() else Path(file)


class PicturePipe(Frames):
    """Pictures whose paths come on standard input, one per line."""

    live = True

    def __iter__(self) -> Iterator[Frame | None]:
        """Give them as they come in; read without a buffer of Python's, which a thread would hold to the end."""
        left = b""
        while data := os.read(sys.stdin.fileno(), 1 << 16):
            *lines, left = (left + data).split(b"\n")
            yield from map(_piped, filter(None, lines))
        if left:
            yield _piped(left)

    def place(self, file: str) -> Path:
        """Where a picture lies."""
        return Path(file)


def _piped(line: bytes) -> Frame:
    name = os.fsdecode(line.rstrip(b"\r"))
    return Frame(name, Path(name))


class RemainingPictures(Frames):
    """The pictures of others that are not done: some `again` first, then those that come, each done one left out."""

    def __init__(self, frames: Frames, done: Iterable[str], again: Iterable[str]) -> None:
        self.frames, self.done = frames, Counter(done)
        self.again = [Frame(file, place) for file in again if (place := frames.place(file)) is not None]
        self.total, self.live, self.ahead = frames.total, frames.live, frames.ahead

    def __iter__(self) -> Iterator[Frame | None]:
        """Give those that are not done."""
        yield from self.again
        left = self.done + Counter(frame.file for frame in self.again)
        for frame in self.frames:
            if frame is not None and left[frame.file] > 0:
                left[frame.file] -= 1
            else:
                yield frame

    def remarks(self) -> list[str]:
        """What went wrong on the way."""
        return self.frames.remarks()


def open_frames(
    frames: Any, order: str = "name", *, follow: bool = False, idle: float | None = None, without: Path | None = None
) -> Frames:
    """Find out what kind of thing pictures come from."""
    path = Path(frames) if isinstance(frames, str | Path) and str(frames) != "-" else None
    if path is not None and path.is_dir():
        return PictureFolder(path, order, follow=follow, idle=idle, without=without)
    if path is not None and not path.exists():
        raise UserError(
            f"{path} does not exist: name a folder of pictures, a list of them, a video, or - for stdin",
            code="no-such-file",
        )
    if follow:
        raise UserError("--follow is for folders that grow: name a folder, or leave it out", code="option-conflict")
    if order != "name":
        raise UserError(
            "--order is for folders: lists, videos and standard input have an order of their own",
            code="option-conflict",
        )
    if path is None:
        return PicturePipe() if isinstance(frames, str | Path) else PictureIterable(frames)
    if is_picture(path.name):
        return PictureIterable([path])
    if path.suffix.lower() in LISTS:
        return PictureList(path)
    return Video(path)


def is_picture(name: str) -> bool:
    """Whether a name is that of a picture, and no hidden file."""
    return name.lower().endswith(SUFFIXES) and not name.startswith(".")


def natural(name: str) -> tuple[tuple[int, str], ...]:
    """A key that sorts `frame2` before `frame10`."""
    parts = re.split(r"(\d+)", name)
    return tuple((int(part) if number % 2 else -1, part) for number, part in enumerate(parts))


def _changed(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


_MOST_DAMAGED = 1000


class Video(Frames):
    """The frames of a video, called `<file>#<number>`; what cannot be decoded is left out and told."""

    def __init__(self, path: Path) -> None:
        try:
            import av
        except ImportError as error:
            told = f"{path} is no list of pictures, and a video needs PyAV: pip install 'testdg[video]'"
            raise UserError(told, code="not-installed") from error
        self.path, self.av, self._damaged = path, av, 0
        self._remarks: list[str] = []
        with self._opened() as container:
            self.total = container.streams.video[0].frames or None

    def _opened(self) -> Any:
        try:
            check_file(self.path)
            container = self.av.open(str(self.path), options={"protocol_whitelist": "file"})
            if not container.streams.video:
                raise ValueError("it has no pictures")
            about = container.streams.video[0].codec_context
            check_picture_size(about.height, about.width)
        except (OSError, ValueError, self.av.FFmpegError) as error:
            told = f"{self.path} is neither a list of pictures nor a video that can be read"
            raise UserError(f"{told}: {getattr(error, 'strerror', None) or error}", code="unreadable-video") from error
        return container

    def __iter__(self) -> Iterator[Frame | None]:
        """Decode one frame after the other; frames that are damaged have no number."""
        self._remarks, number, self._damaged = [], 0, 0
        with self._opened() as container:
            for frame in self._decoded(container):
                yield Frame(f"{self.path.name}#{number:06}", _pixels(frame))
                number += 1
        if self._damaged:
            self._remarks.append(f"{self._damaged} parts of {self.path} are damaged and were left out")
        if self.total is not None and number < self.total:
            self._remarks.append(f"{self.path} ends early: {number} of {self.total} frames could be decoded")

    def _decoded(self, container: Any) -> Iterator[Any]:
        """Frames of one packet after the other; packets that cannot be decoded are counted, up to a limit."""
        stream = container.streams.video[0]
        stream.thread_type = "AUTO"
        packets = container.demux(stream)
        while self._damaged <= _MOST_DAMAGED:
            try:
                packet = next(packets, None)
                if packet is None:
                    return
                found = packet.decode()
            except (self.av.FFmpegError, OSError):
                self._damaged += 1
                continue
            yield from found

    def remarks(self) -> list[str]:
        """Whether the video ended early, or was damaged."""
        return self._remarks


def _pixels(frame: Any) -> Any:
    """RGB, (H, W, 3), upright as the camera was held."""
    turns = round(float(getattr(frame, "rotation", 0) or 0) / 90) % 4
    return np.rot90(frame.to_ndarray(format="rgb24"), turns)
