"""Streams of pictures: decoded ahead of the model, predicted and adapted to, batch by batch."""

import os
import queue
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import chain, islice, takewhile
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor, nn

from testdg.data.frames import Frames, NamedPicture, open_frames
from testdg.data.pictures import Unreadable, decode
from testdg.errors import UserError, visible
from testdg.models.canvas import Canvas
from testdg.runs.predictor import Item, Prediction, Predictor
from testdg.runs.session import BATCH_SIZE, PictureOptions, Session, open_pictures

_MOST_WORKERS = 4
_TICK = 0.2  # seconds between two checks of a waiting thread whether it should stop
_PATIENCE = 1.0  # seconds that pictures of a live stream wait for their batch to fill

Share = Future[list[Item]]
Decoded = queue.Queue[Share | BaseException | None]


class Loader:
    """Decodes frames for a model, in threads of its own where the frames may be read ahead.

    Decoding and the model work at the same time: a feeding thread hands shares of a batch to a pool, and a queue of
    bounded length, two batches long, holds their futures in the order of the frames.
    """

    def __init__(self, canvas: Canvas, channels: int, workers: int | None = None) -> None:
        self.canvas, self.channels = canvas, channels
        self.workers = workers or min(max(1, (os.cpu_count() or 1) // 2), _MOST_WORKERS)  # the model needs cores, too

    def load(self, index: int, frame: NamedPicture) -> Item:
        """Decode a picture, resized to the model's input if that is smaller."""
        try:
            image = decode(frame.picture, self.channels)
            height, width = image.shape[-2:]
            return Item(index, frame.file, self.canvas.shrink(image), (height, width))
        except Unreadable as error:
            return Item(index, frame.file, None, reason=str(error))

    def load_all(self, start: int, frames: Sequence[NamedPicture]) -> list[Item]:
        """Decode some pictures, numbered from `start`."""
        return [self.load(index, frame) for index, frame in enumerate(frames, start)]

    def batches(
        self, frames: Frames, size: int, start: int = 0, stop: Callable[[], bool] = lambda: False
    ) -> Iterator[list[Item]]:
        """Decoded pictures, `size` at a time, numbered from `start`; a live stream does not wait long for a full one.

        If `stop` ends the stream early, an incomplete batch is dropped: the resumed stream makes the same batches.
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
        """Decode in the caller's thread: the caller's iterator may not be thread-safe, and may reuse its memory."""
        given = (frame for frame in frames if frame is not None)
        for index, frame in enumerate(given, start):
            one = self.load(index, frame)
            yield replace(one, image=None if one.image is None else one.image.clone())

    def _ahead(self, frames: Frames, start: int, size: int, stop: Callable[[], bool]) -> Iterator[Item | None]:
        """Decode in other threads, two batches ahead; None if no picture arrived for a while."""
        share = 1 if frames.live else -(-size // (2 * self.workers))  # of a batch, so that threads seldom meet
        decoded: Decoded = queue.Queue(2 * size // share + self.workers)
        over = threading.Event()
        with ThreadPoolExecutor(self.workers, thread_name_prefix="decoder") as pool:
            feeder = threading.Thread(target=self._feed, args=(frames, start, share, pool, decoded, over), daemon=True)
            feeder.start()
            try:
                yield from _taken(decoded, frames.live, stop)
            finally:
                over.set()
                pool.shutdown(wait=False, cancel_futures=True)

    def _feed(
        self, frames: Frames, start: int, share: int, pool: Executor, decoded: Decoded, over: threading.Event
    ) -> None:
        """Submit the work until the frames end or the consumer stops."""
        last: BaseException | None = None
        given = (frame for frame in takewhile(lambda _: not over.is_set(), frames) if frame is not None)
        try:
            while waiting := list(islice(given, share)):
                _put(decoded, pool.submit(self.load_all, start, waiting), over)
                start += share
        except BaseException as error:  # raised where the pictures are consumed
            last = error
        _put(decoded, last, over)


def _put(decoded: Decoded, one: Share | BaseException | None, over: threading.Event) -> None:
    """Wait for room in the queue, unless the consumer has stopped."""
    while not over.is_set():
        try:
            return decoded.put(one, timeout=_TICK)
        except queue.Full:
            continue


def _taken(decoded: Decoded, live: bool, stop: Callable[[], bool]) -> Iterator[Item | None]:
    waited = 0.0
    while not stop():
        try:
            one = decoded.get(timeout=_TICK)
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


@dataclass(frozen=True)
class Skipped:
    """A picture that was skipped, and why."""

    index: int
    file: str
    reason: str


class Answered(NamedTuple):
    """The outcome of one batch: predictions in order, their pictures as decoded, and the pictures that were skipped."""

    predictions: list[Prediction]
    images: list[Tensor]
    skipped: list[Skipped]

    @property
    def files(self) -> list[str]:
        """The pictures of the batch, in order."""
        both: list[Prediction | Skipped] = [*self.predictions, *self.skipped]
        return [one.file for one in sorted(both, key=lambda one: one.index)]


class AdaptedStream:
    """An iterator over the predictions of a stream of pictures.

    `adapter` is the adapting model, to be saved or exported afterwards. `skipped` has the last thousand skipped
    pictures, `remarks` other problems of the stream.
    """

    def __init__(self, session: Session, frames: Frames, batch_size: int | None, *, strict: bool) -> None:
        if batch_size is not None and batch_size < 1:
            raise UserError(f"batch_size must be 1 or more; got {batch_size}", code="wrong-batch-size")
        self.session, self.frames, self.strict = session, frames, strict
        self.batch_size = batch_size or BATCH_SIZE[session.model.task]
        self.adapter = session.online
        self.predictor = Predictor(session)
        self.loader = Loader(session.canvas, session.model.channels)
        self.skipped: list[Skipped] = []
        self._one_by_one = chain.from_iterable(answered.predictions for answered in self.batches())

    def __iter__(self) -> Iterator[Prediction]:
        return self

    def __next__(self) -> Prediction:
        """The next prediction, in the order of the pictures."""
        return next(self._one_by_one)

    @property
    def remarks(self) -> list[str]:
        """Problems of the stream as a whole, in sentences."""
        return self.frames.remarks()

    def batches(self, start: int = 0, stop: Callable[[], bool] = lambda: False) -> Iterator[Answered]:
        """Predictions batch by batch; the first picture has the number `start`. Ends early when `stop` returns True."""
        for loaded in self.loader.batches(self.frames, self.batch_size, start, stop):
            answered = self._answer(loaded)
            self.skipped = [*self.skipped, *answered.skipped][-1000:]
            yield answered

    def _answer(self, loaded: Sequence[Item]) -> Answered:
        good = [one for one in loaded if one.image is not None]
        skipped = [self._skip(one, one.reason) for one in loaded if one.image is None]
        images = [one.image for one in good if one.image is not None]
        found: list[tuple[Prediction, Tensor]] = []
        for places, batch in self.session.canvas.batches(images) if images else ():
            try:
                predictions = self.predictor(batch, [good[place] for place in places])
            except UserError as error:
                if (
                    self.session.model.preprocessing.input_size is not None
                ):  # a model of any input size may fail on a size
                    raise
                skipped += [self._skip(good[place], str(error)) for place in places]
                continue
            found += zip(predictions, (images[place] for place in places), strict=True)
        found.sort(key=lambda pair: pair[0].index)
        return Answered([one for one, _ in found], [image for _, image in found], skipped)

    def _skip(self, one: Item, reason: str) -> Skipped:
        if self.strict:
            message = f"{visible(one.file)} cannot be used: {reason}; without strict it would be skipped"
            raise UserError(message, code="unreadable-picture")
        return Skipped(one.index, one.file, reason)


def adapt_stream(
    model: str | Path | nn.Module,
    frames: str | Path | Iterable[Any],
    method: str | None = None,
    *,
    source: str | Path | None = None,
    guard: bool = True,
    batch_size: int | None = None,
    classes: str | Path | Sequence[str] | None = None,
    device: str = "auto",
    order: str = "name",
    strict: bool = False,
    load_state: str | Path | None = None,
    **settings: Any,
) -> AdaptedStream:
    """Adapt a model to a stream of pictures and predict each: `for prediction in adapt_stream(...)`.

    Args:
        model: Whatever `load_model` takes.
        frames: A folder, a list file, a video file, or any iterable of paths, bytes, PIL images, arrays or tensors:
            (H, W, C) or (C, H, W), uint8 or float in [0, 1].
        method: The name of a method; left out, testdg_aligned.
        source: A folder of clean pictures for methods that need them; without one, the default method is aligned to
            the beginning of the stream.
        guard: Put a guard around the method (docs/guard.md).
        batch_size: Pictures that are predicted together; 1 predicts every picture as it arrives.
        classes: The names of the classes, or a file that has them.
        device: Where the model runs, such as `cuda`.
        order: The order of the pictures of a folder.
        strict: Raise an error for a picture that cannot be read, instead of skipping it (`stream.skipped`).
        load_state: A folder that `stream.adapter.save` wrote, to continue from.
        **settings: Those of the method.

    Examples:
        >>> import testdg
        >>> from testdg.runs import source_model
        >>> benchmark = testdg.load_benchmark("digits-c", images=100, domains=["frost"])
        >>> images, labels = benchmark.domain("frost").read(0, 100)
        >>> stream = testdg.adapt_stream(source_model(benchmark), images, "tent", batch_size=20)
        >>> right = [prediction.class_index == label for prediction, label in zip(stream, labels)]
        >>> print(f"right {100 * sum(map(int, right)) / len(right):.1f} %")
        right 63.0 %
    """
    options = PictureOptions(
        method=method,
        source=None if source is None else Path(source),
        guard=guard,
        classes=classes,
        device=device,
        load_state=None if load_state is None else Path(load_state),
    )
    session = open_pictures(model, options, settings)
    stream = AdaptedStream(session, open_frames(frames, order), batch_size, strict=strict)
    session.warm_up()
    for note in session.notes:
        warnings.warn(note, stacklevel=2)
    return stream
