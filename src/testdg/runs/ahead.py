"""Pictures are decoded while the model is at work: threads, and a queue of bounded length between them."""

import os
import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from dataclasses import replace
from itertools import islice, takewhile

from testdg.data.frames import Frame, Frames
from testdg.data.pictures import Unreadable, decode
from testdg.models.canvas import Canvas
from testdg.runs.predictor import Item

_MOST_WORKERS = 4
_TICK = 0.2  # seconds after which a thread that waits looks whether it should stop
_PATIENCE = 1.0  # seconds that the pictures of a live stream wait for others to fill their batch

Share = Future[list[Item]]
Coming = queue.Queue[Share | BaseException | None]


class Loader:
    """Decodes frames for a model."""

    def __init__(self, canvas: Canvas, channels: int, workers: int | None = None) -> None:
        self.canvas, self.channels = canvas, channels
        self.workers = workers or min(max(1, (os.cpu_count() or 1) // 2), _MOST_WORKERS)  # the model needs cores, too

    def load(self, index: int, frame: Frame) -> Item:
        """Decode a picture, at the model's size where that is smaller."""
        try:
            image = decode(frame.picture, self.channels)
            height, width = image.shape[-2:]
            return Item(index, frame.file, self.canvas.shrink(image), (height, width))
        except Unreadable as error:
            return Item(index, frame.file, None, reason=str(error))

    def load_all(self, start: int, frames: Sequence[Frame]) -> list[Item]:
        """Decode some pictures, numbered from `start`."""
        return [self.load(index, frame) for index, frame in enumerate(frames, start)]

    def batches(
        self, frames: Frames, size: int, start: int = 0, stop: Callable[[], bool] = lambda: False
    ) -> Iterator[list[Item]]:
        """Decoded pictures, `size` at a time, numbered from `start`; those of a live stream do not wait for long.

        Where `stop` ends it early, a batch that is not full is left to those who go on, who make the same batches then.
        """
        found: list[Item] = []
        for one in self._ahead(frames, start, size, stop) if frames.ahead else self._here(frames, start):
            found += [] if one is None else [one]
            if len(found) == size or (one is None and found):
                yield found
                found = []
        if found and (frames.live or not stop()):
            yield found

    def _here(self, frames: Frames, start: int) -> Iterator[Item | None]:
        """In the caller's own thread: an iterator of the caller's may know no other, and use its memory again."""
        given = (frame for frame in frames if frame is not None)
        for index, frame in enumerate(given, start):
            one = self.load(index, frame)
            yield replace(one, image=None if one.image is None else one.image.clone())

    def _ahead(self, frames: Frames, start: int, size: int, stop: Callable[[], bool]) -> Iterator[Item | None]:
        """From other threads, two batches ahead; None where nothing came for a while."""
        share = 1 if frames.live else -(-size // (2 * self.workers))  # of a batch, so that threads seldom meet
        coming: Coming = queue.Queue(2 * size // share + self.workers)
        over = threading.Event()
        with ThreadPoolExecutor(self.workers, thread_name_prefix="decoder") as pool:
            feeder = threading.Thread(target=self._feed, args=(frames, start, share, pool, coming, over), daemon=True)
            feeder.start()
            try:
                yield from _taken(coming, frames.live, stop)
            finally:
                over.set()
                pool.shutdown(wait=False, cancel_futures=True)

    def _feed(
        self, frames: Frames, start: int, share: int, pool: Executor, coming: Coming, over: threading.Event
    ) -> None:
        """Hand out the work until it ends, or nobody wants it any more."""
        last: BaseException | None = None
        given = (frame for frame in takewhile(lambda _: not over.is_set(), frames) if frame is not None)
        try:
            while waiting := list(islice(given, share)):
                _put(coming, pool.submit(self.load_all, start, waiting), over)
                start += share
        except BaseException as error:  # told where the pictures are taken
            last = error
        _put(coming, last, over)


def _put(coming: Coming, one: Share | BaseException | None, over: threading.Event) -> None:
    """Wait for room, unless nobody takes anything any more."""
    while not over.is_set():
        try:
            return coming.put(one, timeout=_TICK)
        except queue.Full:
            continue


def _taken(coming: Coming, live: bool, stop: Callable[[], bool]) -> Iterator[Item | None]:
    waited = 0.0
    while not stop():
        try:
            one = coming.get(timeout=_TICK)
        except queue.Empty:
            waited += _TICK
            if live and waited >= _PATIENCE:
                yield None
            continue
        waited = 0.0
        if isinstance(one, BaseException):
            raise one
        if one is None:
            return
        yield from one.result()
