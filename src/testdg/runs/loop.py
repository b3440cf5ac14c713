"""The online loop: predict, score, learn. The adapter sees images and nothing else.

Numbers stay on the device and are copied to the host for a group of batches at a time, so that the host does not wait
for each batch.
"""

import math
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor

from testdg.data.stream import Batch
from testdg.runs.events import Entry
from testdg.runs.scores import Score, measure
from testdg.runs.session import Event, RunSession
from testdg.runs.views import Views

SAVE_EVERY = 60.0
"""Seconds between two saved states."""
_GROUP = 32  # batches whose numbers come to the host together


class _Pending(NamedTuple):
    """A batch whose numbers are still on the device: the sums of its scores, and the diagnostics of the method."""

    entry: Entry
    parts: list[dict[str, Any]]
    sums: Tensor
    diagnostics: dict[str, Tensor | float | bool | str]
    skipped_updates: Tensor | None


def run_stream(
    session: RunSession,
    score: Score,
    *,
    start: int = 0,
    save_every: float = SAVE_EVERY,
    stop: Callable[[], bool] = lambda: False,
) -> Iterator[tuple[list[Entry], bool]]:
    """Run the batches of a session's stream from `start` on.

    Yields groups of log entries, in order, each with a flag: whether to save the state once the entries are written.
    The caller must keep this order, so that a saved state never includes a batch that the log lacks; resuming relies on
    it. When `stop` returns True, the last group is yielded with the flag set, and then KeyboardInterrupt is raised.
    """
    stream, views = session.stream, session.protocol.make_views()
    pending: list[_Pending] = []
    saved = time.monotonic()
    for batch in stream.batches(start):
        starts = batch.number > 0 and stream.starts_domain(batch.number)
        if starts and session.protocol.resets == "domain":
            session.online.reset()
        event = _step(session, batch, views)
        parts, sums = measure(score, stream, batch, event.logits)
        pending.append(_Pending(_entry(batch, event), parts, sums, dict(event.diagnostics), event.skipped_updates))
        stopping = stop()
        late = stopping or time.monotonic() - saved >= save_every
        if late or stream.ends_domain(batch.number) or len(pending) >= _GROUP:
            save = late or batch.number + 1 == len(stream)
            yield _complete(pending, score), save
            pending = []
            saved = time.monotonic() if save else saved
        if stopping:
            raise KeyboardInterrupt


def _step(session: RunSession, batch: Batch, views: Views) -> Event:
    """Predict a batch, and learn from it unless it is held out. A prediction on views is made before learning."""
    if views.plain:
        return session.step(batch.images, learn=batch.learn)
    scored = views.predict(session.adapter, batch.images, (batch.labels.shape[-2], batch.labels.shape[-1]))
    event = session.step(batch.images) if batch.learn else Event(scored)
    return event._replace(logits=scored)


def _entry(batch: Batch, event: Event) -> Entry:
    """The log entry of a batch, without the numbers that are still on the device.

    Diagnostics have a key of their own in the entry, so that no method can overwrite what the entry itself says.
    """
    return {
        "batch": batch.number,
        "domain": batch.name,
        "severity": batch.block.severity,
        "round": batch.block.round,
        "phase": "adapt" if batch.learn else "held_out",
        "images": len(batch.images),
        **event.guard,
    }


def _complete(pending: list[_Pending], score: Score) -> list[Entry]:
    """Copy the numbers of some batches to the host in one transfer, and complete their log entries."""
    found = [(one.sums, *one.diagnostics.values(), one.skipped_updates) for one in pending]
    tensors = [value for values in found for value in values if isinstance(value, Tensor)]
    kind = torch.float32 if tensors[0].device.type == "mps" else torch.float64  # MPS has no double precision
    flat = torch.cat([tensor.flatten().to(tensors[0].device, kind) for tensor in tensors]).cpu()
    numbers = (part.tolist() for part in torch.split(flat, [tensor.numel() for tensor in tensors]))
    entries = []
    for one in pending:
        sums, width = next(numbers), one.sums.shape[1]
        rows = [sums[start : start + width] for start in range(0, len(sums), width)]
        parts = [{**part, **score.pack(row)} for part, row in zip(one.parts, rows, strict=True)]
        diagnostics = {key: _plain(value, numbers) for key, value in one.diagnostics.items()}
        entry = {**one.entry, "errors": sum(part["errors"] for part in parts)}
        if one.skipped_updates is not None:
            entry["skipped_updates"] = _plain(one.skipped_updates, numbers)
        entries.append({**entry, "diagnostics": diagnostics, "parts": parts})
    return entries


def _plain(value: Tensor | float | bool | str, numbers: Iterator[list[float]]) -> float | int | bool | str | None:
    """Convert a number from the device back to its own type; None for NaN and infinity, which JSON does not have."""
    if not isinstance(value, Tensor):
        return value
    number = next(numbers)[0]
    if value.dtype == torch.bool:
        return bool(number)
    if not value.dtype.is_floating_point:
        return int(number)
    return number if math.isfinite(number) else None


@contextmanager
def graceful_interrupt() -> Iterator[Callable[[], bool]]:
    """Yield a function that returns whether a stop of this process was requested (Ctrl-C, SIGTERM).

    The first signal lets the current batch finish; a second one stops the process at once. Only the main
    thread can receive signals, so elsewhere the function always returns False. A signal that is ignored stays ignored.
    """
    received: list[int] = []
    before: dict[int, Any] = {}

    def handle(received_signal: int, _: Any) -> None:
        received.append(received_signal)
        for other, handler in before.items():
            signal.signal(other, handler)

    if threading.current_thread() is threading.main_thread():
        for one in (signal.SIGINT, signal.SIGTERM):
            if signal.getsignal(one) not in (signal.SIG_IGN, None):
                before[one] = signal.signal(one, handle)
    try:
        yield lambda: bool(received)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
