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
from testdg.runs.predictions import Prediction, Size, compare
from testdg.runs.session import BATCH_SIZE, PictureOptions, Session, open_pictures

_MOST_WORKERS = 4
_TICK = 0.2  # seconds between two checks of a waiting thread whether it should stop
_PATIENCE = 1.0  # seconds that pictures of a live stream wait for their batch to fill


@dataclass(frozen=True, eq=False)
class LoadedPicture:
    """A decoded picture with its number and name, or the reason why it is skipped."""

    index: int
    file: str
    image: Tensor | None
    size: Size = (0, 0)
    """Height and width of the file."""
    reason: str = ""


Share = Future[list[LoadedPicture]]
Decoded = queue.Queue[Share | BaseException | None]


class Loader:
    """Decodes frames for a model, in threads of its own where the frames may be read ahead.

    Decoding and the model work at the same time: a feeding thread hands shares of a batch to a pool, and a queue of
    bounded length, two batches long, holds their futures in the order of the frames.
    """

    def __init__(self, canvas: Canvas, channels: int, workers: int | None = None) -> None:
        self.canvas, self.channels = canvas, channels
        half = max(1, (os.cpu_count() or 1) // 2)  # the model needs cores, too
        self.workers = workers or min(half, _MOST_WORKERS)

    def load(self, start: int, frames: Sequence[NamedPicture]) -> list[LoadedPicture]:
        """Decode pictures, numbered from `start`, and resize those that are larger than the model's input."""
        found = []
        for index, frame in enumerate(frames, start):
            try:
                image = decode(frame.picture, self.channels)
                height, width = image.shape[-2:]
                found.append(LoadedPicture(index, frame.file, self.canvas.shrink(image), (height, width)))
            except Unreadable as error:
                found.append(LoadedPicture(index, frame.file, None, reason=str(error)))
        return found

    def batches(
        self, frames: Frames, size: int, start: int = 0, stop: Callable[[], bool] = lambda: False
    ) -> Iterator[list[LoadedPicture]]:
        """Decoded pictures, `size` at a time, numbered from `start`; a live stream does not wait long for a full one.

        If `stop` ends the stream early, an incomplete batch is dropped: the resumed stream makes the same batches.
        """
        found: list[LoadedPicture] = []
        for one in self._ahead(frames, start, size, stop) if frames.ahead else self._here(frames, start):
            found += [] if one is None else [one]
            if len(found) == size or (one is None and found):
                yield found
                found = []
        if found and (frames.live or not stop()):
            yield found

    def _here(self, frames: Frames, start: int) -> Iterator[LoadedPicture]:
        """Decode in the caller's thread: the caller's iterator may not be thread-safe, and may reuse its memory."""
        for index, frame in enumerate(filter(None, frames), start):
            (one,) = self.load(index, [frame])
            yield one if one.image is None else replace(one, image=one.image.clone())

    def _ahead(self, frames: Frames, start: int, size: int, stop: Callable[[], bool]) -> Iterator[LoadedPicture | None]:
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

        def put(one: Share | BaseException | None) -> None:
            while not over.is_set():
                try:
                    return decoded.put(one, timeout=_TICK)
                except queue.Full:
                    continue

        last: BaseException | None = None
        given = filter(None, takewhile(lambda _: not over.is_set(), frames))
        try:
            while waiting := list(islice(given, share)):
                put(pool.submit(self.load, start, waiting))
                start += share
        except BaseException as error:  # raised where the pictures are consumed
            last = error
        put(last)


def _taken(decoded: Decoded, live: bool, stop: Callable[[], bool]) -> Iterator[LoadedPicture | None]:
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


class PredictedBatch(NamedTuple):
    """Predictions in the order of the stream, their pictures as decoded, and the pictures that were skipped."""

    predictions: list[Prediction]
    images: list[Tensor]
    skipped: list[LoadedPicture]

    @property
    def files(self) -> list[str]:
        """All pictures of the batch, in the order of the stream."""
        both: list[Prediction | LoadedPicture] = [*self.predictions, *self.skipped]
        return [one.file for one in sorted(both, key=lambda one: one.index)]


class AdaptedStream:
    """An iterator over the predictions of a stream of pictures.

    `adapter` is the adapting model, to be saved or exported afterwards. `skipped` has the last thousand skipped
    pictures.
    """

    def __init__(self, session: Session, frames: Frames, batch_size: int | None, *, strict: bool) -> None:
        if batch_size is not None and batch_size < 1:
            raise UserError(f"batch_size must be 1 or more; got {batch_size}", code="wrong-batch-size")
        self.session, self.frames, self.strict = session, frames, strict
        self.batch_size = batch_size or BATCH_SIZE[session.model.task]
        self.adapter = session.online
        self.skipped: list[LoadedPicture] = []
        self._one_by_one = chain.from_iterable(batch.predictions for batch in self.batches())

    def __iter__(self) -> Iterator[Prediction]:
        return self

    def __next__(self) -> Prediction:
        return next(self._one_by_one)

    @property
    def remarks(self) -> list[str]:
        """Problems of the stream as a whole, in sentences."""
        return self.frames.remarks()

    def batches(self, start: int = 0, stop: Callable[[], bool] = lambda: False) -> Iterator[PredictedBatch]:
        """Predictions batch by batch; the first picture has the number `start`. Ends early when `stop` returns True."""
        loader = Loader(self.session.canvas, self.session.model.channels)
        for loaded in loader.batches(self.frames, self.batch_size, start, stop):
            batch = self._predict(loaded)
            self.skipped = [*self.skipped, *batch.skipped][-1000:]
            yield batch

    def _predict(self, loaded: Sequence[LoadedPicture]) -> PredictedBatch:
        """Predict pictures, learn from them, and collect those that cannot be used."""
        good, images, skipped = [], [], []
        for one in loaded:
            if one.image is None:
                skipped.append(self._skip(one, one.reason))
            else:
                good.append(one)
                images.append(one.image)
        found: dict[int, Prediction] = {}
        for places, batch in self.session.canvas.batches(images) if images else ():
            try:
                predictions = self._step(batch, [good[place] for place in places])
            except UserError as error:
                if self.session.model.preprocessing.input_size is not None:
                    raise  # only a model of any input size may fail on a size
                skipped += [self._skip(good[place], str(error)) for place in places]
                continue
            found.update(zip(places, predictions, strict=True))
        order = sorted(found)
        return PredictedBatch([found[place] for place in order], [images[place] for place in order], skipped)

    def _step(self, images: Tensor, pictures: Sequence[LoadedPicture]) -> list[Prediction]:
        """Predict images in [0, 1], (N, C, H, W), learn from them, and predict them with the source in another pass."""
        session, names = self.session, self.session.names
        # the method `source` needs one pass only
        event = session.step(images) if session.adapter.learns else None
        by_source = session.predict_by(session.model, images)
        own = by_source if event is None else event.logits
        compared = compare(own, by_source, [one.size for one in pictures])
        found: list[Prediction] = []
        for picture, one in zip(pictures, compared, strict=True):
            found.append(
                Prediction(
                    **vars(one),
                    index=picture.index,
                    file=picture.file,
                    class_name=names[one.class_index],
                    source_class_name=names[one.source_class_index],
                    change=not found and event is not None and event.change,
                    learnt=event is not None and event.learnt,
                    reason="" if event is None else event.reason,
                )
            )
        return found

    def _skip(self, one: LoadedPicture, reason: str) -> LoadedPicture:
        if self.strict:
            message = f"{visible(one.file)} cannot be used: {reason}; without strict it would be skipped"
            raise UserError(message, code="unreadable-picture")
        return replace(one, image=None, reason=reason)


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
