"""`adapt_stream`: pictures in, predictions out, one after the other, while the model adapts to them."""

import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor, nn

from testdg.data.frames import Frames, open_frames
from testdg.errors import UserError, visible
from testdg.runs.ahead import Loader
from testdg.runs.predictor import Item, Prediction, Predictor
from testdg.runs.session import BATCH_SIZE, PictureOptions, Session, open_pictures


@dataclass(frozen=True)
class Skipped:
    """A picture that was left out, and why."""

    index: int
    file: str
    reason: str


class Answered(NamedTuple):
    """What came of one batch: predictions in order, their pictures as they were decoded, and what was left out."""

    predictions: list[Prediction]
    images: list[Tensor]
    skipped: list[Skipped]

    @property
    def files(self) -> list[str]:
        """The pictures of the batch, in order."""
        both: list[Prediction | Skipped] = [*self.predictions, *self.skipped]
        return [one.file for one in sorted(both, key=lambda one: one.index)]


class AdaptedStream:
    """Predictions of a stream of pictures, one by one; iterate over it once.

    `adapter` is what adapts, to be saved or exported afterwards. `skipped` names the last thousand pictures that were
    left out, `remarks` what else was wrong with the stream.
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
        """Give the predictions."""
        return self

    def __next__(self) -> Prediction:
        """The next prediction, in the order of the pictures."""
        return next(self._one_by_one)

    @property
    def remarks(self) -> list[str]:
        """What was wrong with the stream as a whole, in words."""
        return self.frames.remarks()

    def batches(self, start: int = 0, stop: Callable[[], bool] = lambda: False) -> Iterator[Answered]:
        """Predictions batch by batch; the first picture has the number `start`. Ends early once `stop` says so."""
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
                if self.session.model.preprocessing.input_size is not None:  # then it is not their size
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
    """Adapt a model to a stream of pictures, and give a prediction for each: `for prediction in adapt_stream(...)`.

    Args:
        model: Whatever `load_model` takes.
        frames: A folder, a list file, a video file, or any iterable of paths, bytes, PIL images, arrays or tensors:
            (H, W, C) or (C, H, W), uint8 or float in [0, 1].
        method: The name of a method; left out, testdg_aligned.
        source: A folder of clean pictures, for methods that need such; without one, the default method is aligned to
            the beginning of the stream.
        guard: Keep the model from harm (docs/guard.md).
        batch_size: Pictures that are predicted together; 1 answers every picture at once.
        classes: The names of the classes, or a file that has them.
        device: Where the model runs, such as `cuda`.
        order: The order of the pictures of a folder.
        strict: Refuse pictures that cannot be read; else they are skipped (`stream.skipped`).
        load_state: A folder that `stream.adapter.save` wrote, to go on from.
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
