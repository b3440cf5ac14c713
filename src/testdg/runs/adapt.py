"""`adapt_frames`: a stream of pictures with a folder, which resumes where it was stopped."""

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from torch import nn

from testdg.data.frames import Frames, RemainingPictures, open_frames
from testdg.errors import UserError, unknown
from testdg.files import replace_text, writing
from testdg.runs.loop import graceful_interrupt
from testdg.runs.pictures import AdaptedStream, Answered
from testdg.runs.prediction_folder import ROWS, PredictionFolder, require_pyarrow, write_parquet
from testdg.runs.session import BATCH_SIZE, PictureOptions, Session, open_pictures
from testdg.runs.summary import Maps, Sample, Samples, Tally

SAVE_EVERY = 60.0  # seconds between two saved states
FORMATS = ("csv", "parquet")
FIGURE, SUMMARY = "figure.png", "summary.json"


@dataclass(frozen=True, kw_only=True)
class Request:
    """Where pictures come from and where predictions go; `options` are about the model."""

    frames: str | Path
    model: str | Path | nn.Module
    out: Path
    options: PictureOptions
    settings: Mapping[str, Any] | None = None
    batch_size: int | None = None
    order: str = "name"
    follow: bool = False
    idle: float | None = None
    strict: bool = False
    save_state: Path | None = None
    export: Path | None = None
    format: str = "csv"
    save_every: float = SAVE_EVERY


class Watcher:
    """Gets the progress of a stream. Every method does nothing: override what you want to show."""

    def note(self, text: str) -> None:
        """Called with something that the user should know."""

    def started(self, total: int | None, done: int) -> None:
        """Called before the first prediction; `done` pictures were predicted before the stream was resumed."""

    def answered(self, answered: Answered, tally: Tally) -> None:
        """Called after a batch was written."""

    def stopped(self) -> bool:
        """Return True to end the stream with its state saved, as after Ctrl-C."""
        return False


Draw = Callable[[Path, Tally, Sequence[Sample], str, str], Any]
"""Draws the figure of a stream: where, what it amounts to, some pictures, a title and the model."""


def adapt_frames(request: Request, watcher: Watcher | None = None, draw: Draw | None = None) -> dict[str, Any]:
    """Predict and adapt to all pictures, write the results, and return the summary."""
    watcher = watcher or Watcher()
    check_request(request)
    frames = open_frames(request.frames, request.order, follow=request.follow, idle=request.idle, without=request.out)
    session = open_request(request)
    for note in session.notes:
        watcher.note(note)
    return _Run(request, session, frames, watcher, draw).result()


def check_request(request: Request) -> None:
    """Refuse options that contradict each other, before anything is loaded."""
    if request.format not in FORMATS:
        raise unknown("format", request.format, FORMATS)
    if request.format == "parquet":
        require_pyarrow()
    if request.idle is not None and not request.follow:
        message = "--idle is for folders that grow: use it with --follow, or leave it out"
        raise UserError(message, code="option-conflict")


def open_request(request: Request) -> Session:
    """Open the session of a stream, unless it cannot give what was requested."""
    session = open_pictures(request.model, request.options, dict(request.settings or {}))
    if request.export is not None and (reason := session.adapter.why_not_exportable()) is not None:
        message = f"--export is not possible: {session.adapter.name} cannot be one model, as {reason}"
        raise UserError(message, code="not-exportable")
    return session


class _Run:
    """One stream, from the content of its folder to its summary."""

    def __init__(
        self, request: Request, session: Session, frames: Frames, watcher: Watcher, draw: Draw | None = None
    ) -> None:
        self.request, self.session, self.frames, self.watcher, self.draw = request, session, frames, watcher, draw
        self.size = request.batch_size or BATCH_SIZE[session.model.task]
        self.out = PredictionFolder(request.out, self._config())
        self.maps = Maps(request.out, session.names)
        self.samples = Samples(request.out, self.maps)
        self.seconds, self.begun, self.before = 0.0, time.monotonic(), 0

    def _config(self) -> dict[str, Any]:
        adapter, options, frames = self.session.adapter, self.request.options, self.request.frames
        settings = {key: "none" if value is None else value for key, value in asdict(adapter.settings).items()}
        return {
            "frames": str(frames) if str(frames) == "-" else str(Path(frames).resolve()),
            "order": self.request.order,
            "model": self.session.model.name,
            "fingerprint": adapter.origin["fingerprint"],
            "method": adapter.name,
            "guard": options.guard,
            "source": "none" if options.source is None else str(options.source.resolve()),
            "load_state": "none" if options.load_state is None else str(options.load_state.resolve()),
            "batch_size": self.size,
            "classes": self.session.names,
            "settings": settings,
        }

    def result(self) -> dict[str, Any]:
        """Run to the end of the stream, or until a request to stop."""
        with self.out.open(), graceful_interrupt() as interrupted:
            done = self._resume()

            def stop() -> bool:
                return interrupted() or self.watcher.stopped()

            self.watcher.started(self.frames.total, done)
            stream = AdaptedStream(self.session, self.frames, self.size, strict=self.request.strict)
            self._follow(stream, done, stop)
            self._save()
            for remark in stream.remarks:
                self.watcher.note(remark)
            if stop() and not self.frames.live:
                raise KeyboardInterrupt
            return self._finish(stream.remarks)

    def _resume(self) -> int:
        behind = self.out.resume(self.session, self.frames.there)
        self.session.warm_up()
        if behind.done or behind.again:
            self.frames = RemainingPictures(self.frames, behind.done, behind.again)
            self.samples.load()
        self.seconds = behind.seconds
        self.begun, self.before = time.monotonic(), self.out.tally.all.count
        return len(behind.done)

    def _follow(self, stream: AdaptedStream, done: int, stop: Callable[[], bool]) -> None:
        saved = time.monotonic()
        for answered in stream.batches(done, stop):
            for prediction, image in zip(answered.predictions, answered.images, strict=True):
                self.maps.write(prediction)
                self.samples.add(prediction, image)
            self.out.append(answered)
            self.watcher.answered(answered, self.out.tally)
            if time.monotonic() - saved >= self.request.save_every:
                self._save()
                saved = time.monotonic()

    def _elapsed(self) -> float:
        return self.seconds + time.monotonic() - self.begun

    def _save(self) -> None:
        self.out.save(self.session, self._elapsed())
        self.samples.save()

    def _finish(self, remarks: list[str]) -> dict[str, Any]:
        tally, session, request = self.out.tally, self.session, self.request
        if not tally.all.count and not self.frames.live:
            message = f"none of the {tally.skipped} pictures of {request.frames} can be read: see skipped.csv"
            raise UserError(message, code="no-pictures")
        if request.save_state is not None:
            session.online.save(request.save_state)
        if request.export is not None:
            with writing(request.export):
                session.adapter.export(request.export)
        table = write_parquet(request.out / ROWS) if request.format == "parquet" else request.out / ROWS
        summary = self._summary(remarks)
        with writing(request.out):
            replace_text(request.out / SUMMARY, json.dumps(summary, indent=2) + "\n")
        late = tally.all.count > self.before or (tally.all.count and not (request.out / FIGURE).exists())
        if late and self.draw is not None:
            title = f"{session.adapter.title} on {Path(request.frames).name}"
            self.draw(request.out / FIGURE, tally, self.samples.chosen(), title, self.session.model.name)
        return {**summary, "table": str(table), "figure": str(request.out / FIGURE), "out": str(request.out)}

    def _summary(self, remarks: list[str]) -> dict[str, Any]:
        seconds = time.monotonic() - self.begun
        tally = self.out.tally
        return {
            "method": self.session.adapter.name,
            "model": self.session.model.name,
            **tally.summary(),
            "guard": self.session.online.guard_counts,
            "remarks": remarks,
            "seconds": round(self._elapsed(), 3),
            "images_per_second": round((tally.all.count - self.before) / max(seconds, 1e-9), 2),
        }
