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
from testdg.runs.loop import SAVE_EVERY, graceful_interrupt
from testdg.runs.pictures import AdaptedStream, PredictedBatch
from testdg.runs.prediction_folder import ROWS, PredictionFolder, require_pyarrow, write_parquet
from testdg.runs.session import BATCH_SIZE, PictureOptions, Session, open_pictures
from testdg.runs.summary import Sample, StreamStatistics
from testdg.schema import plain

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

    def advanced(self, batch: PredictedBatch, statistics: StreamStatistics) -> None:
        """Called after a batch was written."""

    def stopped(self) -> bool:
        """Return True to end the stream with its state saved, as after Ctrl-C."""
        return False


Draw = Callable[[Path, StreamStatistics, Sequence[Sample], str, str], Any]
"""Draws the figure of a stream: where, what it amounts to, some pictures, a title and the model."""


def adapt_frames(request: Request, watcher: Watcher | None = None, draw: Draw | None = None) -> dict[str, Any]:
    """Predict and adapt to all pictures, write the results, and return the summary.

    The stream ends with its pictures, or at a request to stop.
    """
    watcher = watcher or Watcher()
    check_request(request)
    frames = open_frames(request.frames, request.order, follow=request.follow, idle=request.idle, without=request.out)
    session = open_request(request)
    for note in session.notes:
        watcher.note(note)
    batch_size = request.batch_size or BATCH_SIZE[session.model.task]
    folder = PredictionFolder(request.out, _config(request, session, batch_size), session.names)
    with folder.open(), graceful_interrupt() as interrupted:
        summary = _follow(request, session, frames, folder, watcher, lambda: interrupted() or watcher.stopped())
        return _write_results(request, session, folder, summary, draw)


def _follow(
    request: Request,
    session: Session,
    frames: Frames,
    folder: PredictionFolder,
    watcher: Watcher,
    stop: Callable[[], bool],
) -> dict[str, Any]:
    """Predict from where the folder resumes to the end of the stream; returns the summary."""
    resumed = folder.resume(session, frames.there)
    session.warm_up()
    if resumed.done or resumed.again:
        frames = RemainingPictures(frames, resumed.done, resumed.again)
    begun = saved = time.monotonic()
    statistics = folder.statistics
    watcher.started(frames.total, len(resumed.done))
    stream = AdaptedStream(session, frames, folder.config["batch_size"], strict=request.strict)
    for batch in stream.batches(len(resumed.done), stop):
        folder.append(batch)
        watcher.advanced(batch, statistics)
        if time.monotonic() - saved >= request.save_every:
            folder.save(session, resumed.seconds + time.monotonic() - begun)
            saved = time.monotonic()
    seconds = time.monotonic() - begun
    folder.save(session, resumed.seconds + seconds)
    for remark in stream.remarks:
        watcher.note(remark)
    if stop() and not frames.live:
        raise KeyboardInterrupt
    if not statistics.all.count and not frames.live:
        message = f"none of the {statistics.skipped} pictures of {request.frames} can be read: see skipped.csv"
        raise UserError(message, code="no-pictures")
    return {
        "method": session.adapter.name,
        "model": session.model.name,
        **statistics.summary(),
        "guard": session.online.guard_counts,
        "remarks": stream.remarks,
        "seconds": round(resumed.seconds + seconds, 3),
        "images_per_second": round((statistics.all.count - folder.resumed) / max(seconds, 1e-9), 2),
    }


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


def _config(request: Request, session: Session, batch_size: int) -> dict[str, Any]:
    """Everything that the predictions depend on, as plain values."""
    adapter, options = session.adapter, request.options
    source, state = options.source, options.load_state
    found: dict[str, Any] = plain(
        {
            "frames": "-" if str(request.frames) == "-" else str(Path(request.frames).resolve()),
            "order": request.order,
            "model": session.model.name,
            "fingerprint": adapter.origin["fingerprint"],
            "method": adapter.name,
            "guard": options.guard,
            "source": source and str(source.resolve()),
            "load_state": state and str(state.resolve()),
            "batch_size": batch_size,
            "classes": session.names,
            "settings": asdict(adapter.settings),
        }
    )
    return found


def _write_results(
    request: Request,
    session: Session,
    folder: PredictionFolder,
    summary: dict[str, Any],
    draw: Draw | None,
) -> dict[str, Any]:
    """Write the state, the model, the table, the summary and the figure, as far as requested."""
    if request.save_state is not None:
        session.online.save(request.save_state)
    if request.export is not None:
        with writing(request.export):
            session.adapter.export(request.export)
    table, figure = request.out / ROWS, request.out / FIGURE
    if request.format == "parquet":
        table = write_parquet(table)
    with writing(request.out):
        replace_text(request.out / SUMMARY, json.dumps(summary, indent=2) + "\n")
    statistics = folder.statistics
    outdated = statistics.all.count > folder.resumed or not figure.exists()
    if draw is not None and statistics.all.count and outdated:
        title = f"{session.adapter.title} on {Path(request.frames).name}"
        draw(figure, statistics, folder.samples.chosen(), title, session.model.name)
    return {**summary, "table": str(table), "figure": str(figure), "out": str(request.out)}
