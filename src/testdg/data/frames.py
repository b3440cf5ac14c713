"""Where pictures come from: a folder, a list, a video, standard input, or any iterable."""

import os
import re
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sized
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
from torch import Tensor

from testdg.bounds import check_file, check_picture_size, read_text
from testdg.data.pictures import SUFFIXES
from testdg.errors import UserError, unknown

ORDERS = ("name", "time")
LISTS = ("", ".txt", ".lst", ".list")
_MOST_DAMAGED = 1000  # parts of a video
_POLL = 0.5  # seconds between two polls of a growing folder
_SETTLED = 2.0  # seconds without a change after which a file counts as complete


class NamedPicture(NamedTuple):
    """A picture before it is decoded: its name, and a path, bytes, an array, a tensor or a PIL image."""

    file: str
    picture: object


class Frames:
    """Pictures in order. An item is None if no new picture is available now, but one may come later."""

    total: int | None = None
    """Number of pictures, if known."""
    live = False
    """Whether pictures are still arriving, so that a batch should not wait long to be filled."""
    ahead = True
    """Whether another thread may read pictures ahead."""

    def __iter__(self) -> Iterator[NamedPicture | None]:
        raise NotImplementedError

    def place(self, file: str) -> Path | None:
        """Path of a picture by its name; None if it is not a file of its own."""
        return None

    def there(self, file: str) -> bool:
        """Whether a picture still exists; pictures that are not files count as existing."""
        return (path := self.place(file)) is None or path.is_file()

    def remarks(self) -> list[str]:
        """Warnings about the pictures that were read so far."""
        return []


class PictureIterable(Frames):
    """Tensors, arrays, PIL images, bytes or paths from the caller; a batch, (N, C, H, W), is N pictures.

    The name of a picture is its path, or its position if it has none.
    """

    ahead = False

    def __init__(self, pictures: Iterable[object]) -> None:
        self.pictures = pictures
        self.total = len(pictures) if isinstance(pictures, Sized) else None

    def __iter__(self) -> Iterator[NamedPicture | None]:
        number = 0
        for item in self.pictures:
            is_batch = isinstance(item, np.ndarray | Tensor) and item.ndim == 4
            for picture in cast(Iterable[object], item) if is_batch else (item,):
                name = str(picture) if isinstance(picture, str | Path) else f"{number:06}"
                yield NamedPicture(name, picture)
                number += 1


class PictureFolder(Frames):
    """The pictures of a folder and its subfolders, by name or time; with `follow`, also pictures that arrive later.

    With `follow`, iteration ends after `idle` seconds without a new picture (by default never). The folder `without`,
    which may contain the output, is skipped.
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
            raise UserError(
                f"{path} contains no pictures ({', '.join(SUFFIXES)}): name another folder", code="no-images"
            )

    def __iter__(self) -> Iterator[NamedPicture | None]:
        if not self.live:
            names, self._first = self._first or self._names(), None
            yield from (NamedPicture(name, self.path / name) for name in names)
            return
        seen: set[str] = set()
        sizes: dict[str, tuple[int, float]] = {}
        last = time.monotonic()
        while self.idle is None or time.monotonic() - last < self.idle:
            new = [name for name in self._names(seen) if self._complete(name, sizes)]
            seen.update(new)
            yield from (NamedPicture(name, self.path / name) for name in new)
            last = time.monotonic() if new else last
            yield None
            time.sleep(_POLL)

    def _complete(self, name: str, sizes: dict[str, tuple[int, float]]) -> bool:
        """Whether a file is complete: it has not changed since the last poll, or for some seconds."""
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
            visible = [name for name in folders if not name.startswith(".")]
            folders[:] = [name for name in visible if Path(place, name).resolve() != self.without]
            inside = Path(place).relative_to(self.path)
            found += [(inside / file).as_posix() for file in filter(is_picture, files)]
        names = sorted((name for name in found if name not in but), key=natural)
        return names if self.order == "name" else sorted(names, key=self._changed)

    def _changed(self, name: str) -> float:
        try:
            return (self.path / name).stat().st_mtime
        except OSError:
            return 0.0

    def place(self, file: str) -> Path | None:
        return self.path / file


class PictureList(Frames):
    """Pictures of a list, one path per line, relative to the list or to the working directory."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            lines = [line.rstrip("\r\n") for line in read_text(path).split("\n")]
        except (OSError, ValueError) as error:
            raise UserError(
                f"{path} cannot be read as a list: expected one path per line ({error})", code="unreadable-list"
            ) from error
        self.names = [line for line in lines if line.strip()]
        self.total = len(self.names)
        if not self.names:
            raise UserError(f"{path} is empty: expected one path of a picture per line", code="empty-list")

    def __iter__(self) -> Iterator[NamedPicture | None]:
        yield from (NamedPicture(name, self.place(name)) for name in self.names)

    def place(self, file: str) -> Path:
        relative = self.path.parent / file
        return relative if relative.is_file() else Path(file)


class PicturePipe(Frames):
    """Pictures whose paths come on standard input, one per line."""

    live = True

    def __iter__(self) -> Iterator[NamedPicture | None]:
        # os.read, not sys.stdin: a thread that waits there locks its buffer, and Python cannot exit cleanly
        left = b""
        while data := os.read(sys.stdin.fileno(), 1 << 16):
            *lines, left = (left + data).split(b"\n")
            yield from map(self._named, filter(None, lines))
        if left:
            yield self._named(left)

    def _named(self, line: bytes) -> NamedPicture:
        name = os.fsdecode(line.rstrip(b"\r"))
        return NamedPicture(name, self.place(name))

    def place(self, file: str) -> Path:
        return Path(file)


class RemainingPictures(Frames):
    """The pictures of another source that remain when a stream resumes: first those of `again`, then the rest.

    Pictures are skipped by name, as often as the name is in `done` or `again`: a list may contain a picture twice.
    """

    def __init__(self, frames: Frames, done: Iterable[str], again: Iterable[str]) -> None:
        self.frames, self.done = frames, Counter(done)
        self.again = [NamedPicture(file, place) for file in again if (place := frames.place(file)) is not None]
        self.total, self.live, self.ahead = frames.total, frames.live, frames.ahead

    def __iter__(self) -> Iterator[NamedPicture | None]:
        yield from self.again
        left = self.done + Counter(frame.file for frame in self.again)
        for frame in self.frames:
            if frame is not None and left[frame.file] > 0:
                left[frame.file] -= 1
            else:
                yield frame

    def remarks(self) -> list[str]:
        return self.frames.remarks()


def open_frames(
    frames: str | Path | Iterable[object],
    order: str = "name",
    *,
    follow: bool = False,
    idle: float | None = None,
    without: Path | None = None,
) -> Frames:
    """Open a source of pictures: a folder, a list, a picture, a video, "-" for standard input, or an iterable."""
    path = Path(frames) if isinstance(frames, str | Path) and str(frames) != "-" else None
    if path is not None and path.is_dir():
        return PictureFolder(path, order, follow=follow, idle=idle, without=without)
    if path is not None and not path.exists():
        raise UserError(
            f"{path} does not exist: name a folder of pictures, a list of paths, a video, or - for stdin",
            code="no-such-file",
        )
    if follow:
        raise UserError("--follow is only for folders: name a folder, or leave it out", code="option-conflict")
    if order != "name":
        raise UserError(
            "--order is for folders: leave it out for lists, videos and standard input",
            code="option-conflict",
        )
    if not isinstance(frames, str | Path):
        return PictureIterable(frames)
    if path is None:
        return PicturePipe()
    if is_picture(path.name):
        return PictureIterable([path])
    if path.suffix.lower() in LISTS:
        return PictureList(path)
    return Video(path)


def is_picture(name: str) -> bool:
    """Whether a file is not hidden and has the suffix of a picture."""
    return name.lower().endswith(SUFFIXES) and not name.startswith(".")


def natural(name: str) -> tuple[tuple[int, str], ...]:
    """Sort key that puts `frame2` before `frame10`."""
    parts = re.split(r"(\d+)", name)
    return tuple((int(part) if number % 2 else -1, part) for number, part in enumerate(parts))


class Video(Frames):
    """The frames of a video, named `<file>#<number>`. Damaged parts are skipped, with a warning."""

    def __init__(self, path: Path) -> None:
        try:
            import av
        except ImportError as error:
            message = f"{path} is not a list of pictures, and a video needs PyAV: pip install 'testdg[video]'"
            raise UserError(message, code="not-installed") from error
        self.path, self.av, self._damaged = path, av, 0
        self._remarks: list[str] = []
        with self._opened() as container:
            self.total = container.streams.video[0].frames or None

    def _opened(self) -> Any:
        try:
            check_file(self.path)
            container = self.av.open(str(self.path), options={"protocol_whitelist": "file"})
            if not container.streams.video:
                raise ValueError("it has no video stream")
            about = container.streams.video[0].codec_context
            check_picture_size(about.height, about.width)
        except (OSError, ValueError, self.av.FFmpegError) as error:
            message = f"{self.path} is neither a list nor a readable video"
            raise UserError(
                f"{message}: {getattr(error, 'strerror', None) or error}", code="unreadable-video"
            ) from error
        return container

    def __iter__(self) -> Iterator[NamedPicture | None]:
        self._remarks, number, self._damaged = [], 0, 0
        with self._opened() as container:
            for frame in self._decoded(container):
                turns = round(float(getattr(frame, "rotation", 0) or 0) / 90) % 4
                pixels = np.rot90(frame.to_ndarray(format="rgb24"), turns)  # (H, W, 3), upright
                yield NamedPicture(f"{self.path.name}#{number:06}", pixels)
                number += 1
        if self._damaged:
            self._remarks.append(f"{self._damaged} parts of {self.path} are damaged and were left out")
        if self.total is not None and number < self.total:
            self._remarks.append(f"{self.path} ends early: {number} of {self.total} frames could be decoded")

    def _decoded(self, container: Any) -> Iterator[Any]:
        """Decode packet by packet, and count packets that cannot be decoded; too many of them end the video."""
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
        return self._remarks
