"""Frames of a video file, by PyAV."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from testdg.bounds import check_file, check_picture_size
from testdg.data.frames import Frame, Frames
from testdg.errors import UserError

_MOST_DAMAGED = 1000


class Video(Frames):
    """The frames of a video, called `<file>#<number>`; what cannot be decoded is left out and told."""

    def __init__(self, path: Path) -> None:
        try:
            import av
        except ImportError as error:
            told = f"{path} is no list of pictures, and a video needs PyAV: pip install 'testdg[video]'"
            raise UserError(told) from error
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
            raise UserError(f"{told}: {getattr(error, 'strerror', None) or error}") from error
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
