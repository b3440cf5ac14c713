"""The online loop: predict, score, learn. The adapter sees images and nothing else."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

from testdg.data.stream import Batch, Stream
from testdg.evaluation.scores import Score, measure
from testdg.evaluation.views import Views
from testdg.methods import Adapter
from testdg.methods.parts.learner import Learner

Event = dict[str, Any]
_GROUP = 32  # batches whose numbers come to the host together


class Pending(NamedTuple):
    """A batch whose numbers are still on the device: the sums of its parts, and what the adapter tells about it."""

    event: Event
    parts: list[dict[str, Any]]
    sums: Tensor
    told: dict[str, Tensor | float | bool]

    def tensors(self) -> list[Tensor]:
        """Everything that must come to the host."""
        return [self.sums, *(value for value in self.told.values() if isinstance(value, Tensor))]

    def complete(self, score: Score, numbers: Iterator[list[float]]) -> Event:
        """The event, with the numbers of `tensors` filled in."""
        flat, width = next(numbers), self.sums.shape[1]
        rows = [flat[start : start + width] for start in range(0, len(flat), width)]
        parts = [{**part, **score.pack(row)} for part, row in zip(self.parts, rows, strict=True)]
        told = {k: _plain(next(numbers)[0], v.dtype) if isinstance(v, Tensor) else v for k, v in self.told.items()}
        return {**self.event, "errors": sum(part["errors"] for part in parts), **told, "parts": parts}


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
        recorder.add(Pending(_about(batch), parts, sums, _told(adapter, learners) if batch.learn else {}))
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
    scored = views.predict(adapter, batch.images, (batch.labels.shape[-2], batch.labels.shape[-1]))
    if batch.learn:
        adapter(batch.images)
    return scored


def _about(batch: Batch) -> Event:
    return {
        "batch": batch.number,
        "domain": batch.name,
        "severity": batch.block.severity,
        "round": batch.block.round,
        "phase": "adapt" if batch.learn else "held_out",
        "images": len(batch.images),
    }


def _told(adapter: Adapter, learners: list[Learner]) -> dict[str, Tensor | float | bool]:
    """What the adapter tells about a batch, still on the device, and how many updates it has left out so far."""
    told = {k: v.detach().clone() if isinstance(v, Tensor) else v for k, v in adapter.diagnostics.items()}
    if learners:
        told["skipped_updates"] = torch.stack([learner.skipped for learner in learners]).sum()
    return told


def _to_host(tensors: list[Tensor]) -> Iterator[list[float]]:
    """Bring tensors to the host together; each becomes a flat list."""
    if not tensors:
        return iter(())
    kind = torch.float32 if tensors[0].device.type == "mps" else torch.float64  # MPS has no double precision
    flat = torch.cat([tensor.flatten().to(tensors[0].device, kind) for tensor in tensors]).cpu()
    return (part.tolist() for part in torch.split(flat, [tensor.numel() for tensor in tensors]))


def _plain(number: float, kind: torch.dtype) -> float | int | bool | None:
    """Give a number back its kind; what JSON cannot hold becomes None."""
    if kind == torch.bool:
        return bool(number)
    if not kind.is_floating_point:
        return int(number)
    return number if math.isfinite(number) else None
