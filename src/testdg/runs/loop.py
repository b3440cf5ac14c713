"""The online loop: predict, score, learn. The adapter sees images and nothing else."""

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

from testdg.core.learner import Learner
from testdg.data.stream import Batch, Stream
from testdg.methods import Adapter
from testdg.runs.events import Event
from testdg.runs.scores import Score, measure
from testdg.runs.views import Views

Told = dict[str, Tensor | float | bool]
_GROUP = 32  # batches whose numbers come to the host together


class Pending(NamedTuple):
    """A batch whose numbers are still on the device: the sums of its parts, and what the adapter tells about it.

    Diagnostics have a key of their own in the event, so that no method can write over what the event says itself.
    """

    event: Event
    parts: list[dict[str, Any]]
    sums: Tensor
    diagnostics: Told
    skipped_updates: Tensor | None = None

    def tensors(self) -> list[Tensor]:
        """Everything that must come to the host."""
        told = (*self.diagnostics.values(), self.skipped_updates)
        return [self.sums, *(value for value in told if isinstance(value, Tensor))]

    def complete(self, score: Score, numbers: Iterator[list[float]]) -> Event:
        """The event, with the numbers of `tensors` filled in."""
        flat, width = next(numbers), self.sums.shape[1]
        rows = [flat[start : start + width] for start in range(0, len(flat), width)]
        parts = [{**part, **score.pack(row)} for part, row in zip(self.parts, rows, strict=True)]
        told = {k: _plain(v, numbers) for k, v in self.diagnostics.items()}
        skipped = {} if self.skipped_updates is None else {"skipped_updates": _plain(self.skipped_updates, numbers)}
        errors = sum(part["errors"] for part in parts)
        return {**self.event, "errors": errors, **skipped, "diagnostics": told, "parts": parts}


@dataclass
class Recorder:
    """Keeps the numbers of batches on the device and hands them on in groups."""

    score: Score
    write: Callable[[list[Event]], None]
    pending: list[Pending] = field(default_factory=list)

    def add(self, batch: Pending) -> None:
        """Remember a batch."""
        self.pending.append(batch)
        if len(self.pending) >= _GROUP:
            self.flush()

    def flush(self) -> None:
        """Bring everything to the host in one transfer and write it."""
        numbers = _to_host([tensor for batch in self.pending for tensor in batch.tensors()])
        events = [batch.complete(self.score, numbers) for batch in self.pending]
        self.pending = []
        if events:
            self.write(events)


def run_stream(
    adapter: Adapter,
    stream: Stream,
    score: Score,
    *,
    resets: bool = False,
    views: Views | None = None,
    start: int,
    write: Callable[[list[Event]], None],
    save: Callable[[int], None],
    save_every: float = 60.0,
    stop: Callable[[], bool] = lambda: False,
) -> None:
    """Evaluate the batches from `start` on; `resets` brings the adapter back to the source at every domain.

    `views` say how the scored prediction is made, where it is not the adapter's own. `write` gets events in order;
    `save` gets the number of batches done, after their events were written. Once `stop` says so, the state is saved
    and KeyboardInterrupt raised.
    """
    recorder, saved = Recorder(score, write), time.monotonic()
    learners = list(adapter.learners().values())
    for batch in stream.batches(start):
        if resets and batch.number and stream.starts_domain(batch.number):
            adapter.reset()
        logits = _predict(adapter, batch, views or Views())
        parts, sums = measure(score, stream, batch, logits)
        recorder.add(_pending(adapter, learners, batch, parts, sums))
        stopping = stop()
        late = stopping or time.monotonic() - saved >= save_every
        if late or stream.ends_domain(batch.number):
            recorder.flush()
        if late or batch.number + 1 == len(stream):
            save(batch.number + 1)
            saved = time.monotonic()
        if stopping:
            raise KeyboardInterrupt


def _predict(adapter: Adapter, batch: Batch, views: Views) -> Tensor:
    """Predict a batch, and learn from it where that is wanted; the prediction on views comes first."""
    if views.plain:
        return adapter(batch.images) if batch.learn else adapter.predict(batch.images)
    size = (batch.labels.shape[-2], batch.labels.shape[-1])
    scored = views.predict(adapter, batch.images, size)
    if batch.learn:
        adapter(batch.images)
    return scored


def _pending(
    adapter: Adapter, learners: list[Learner], batch: Batch, parts: list[dict[str, Any]], sums: Tensor
) -> Pending:
    """What is known of a batch; of one that was learnt from, also what the adapter and a guard around it tell."""
    event = {
        "batch": batch.number,
        "domain": batch.name,
        "severity": batch.block.severity,
        "round": batch.block.round,
        "phase": "adapt" if batch.learn else "held_out",
        "images": len(batch.images),
    }
    if not batch.learn:
        return Pending(event, parts, sums, {})
    own: Event = adapter.event()
    told = {k: v.detach().clone() if isinstance(v, Tensor) else v for k, v in adapter.diagnostics.items()}
    skipped = torch.stack([learner.skipped for learner in learners]).sum() if learners else None
    return Pending(event | own, parts, sums, {k: v for k, v in told.items() if k not in own}, skipped)


def _to_host(tensors: list[Tensor]) -> Iterator[list[float]]:
    """Bring tensors to the host together; each becomes a flat list."""
    if not tensors:
        return iter(())
    kind = torch.float32 if tensors[0].device.type == "mps" else torch.float64  # MPS has no double precision
    flat = torch.cat([tensor.flatten().to(tensors[0].device, kind) for tensor in tensors]).cpu()
    return (part.tolist() for part in torch.split(flat, [tensor.numel() for tensor in tensors]))


def _plain(value: Tensor | float | bool, numbers: Iterator[list[float]]) -> float | int | bool | None:
    """Give a number from the device back its kind; what JSON cannot hold becomes None."""
    if not isinstance(value, Tensor):
        return value
    number = next(numbers)[0]
    if value.dtype == torch.bool:
        return bool(number)
    if not value.dtype.is_floating_point:
        return int(number)
    return number if math.isfinite(number) else None
