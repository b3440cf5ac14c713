"""The online loop: predict, score, learn. The adapter sees images and nothing else."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from testdg.data.stream import Batch, Stream
from testdg.methods import Adapter

Event = dict[str, Any]
_GROUP = 32  # batches whose scalars come to the host together


@dataclass
class Recorder:
    """Keeps the scalars of batches on the device and hands them on in groups."""

    write: Callable[[list[Event]], None]
    pending: list[tuple[Event, dict[str, Tensor | float | bool]]] = field(default_factory=list)

    def add(self, event: Event, scalars: dict[str, Tensor | float | bool]) -> None:
        """Remember a batch."""
        self.pending.append((event, scalars))
        if len(self.pending) >= _GROUP:
            self.flush()

    def flush(self) -> None:
        """Bring everything to the host in one transfer and write it."""
        tensors = [value for _, scalars in self.pending for value in scalars.values() if isinstance(value, Tensor)]
        numbers = iter(_to_host(tensors))
        events = []
        for event, scalars in self.pending:
            found = {
                key: _plain(next(numbers), value.dtype) if isinstance(value, Tensor) else value
                for key, value in scalars.items()
            }
            events.append({**event, **found})
        self.pending = []
        if events:
            self.write(events)


def run_stream(
    adapter: Adapter,
    stream: Stream,
    *,
    adapted: int,
    start: int,
    write: Callable[[list[Event]], None],
    save: Callable[[int], None],
    save_every: float = 60.0,
) -> None:
    """Evaluate the batches from `start` on; the first `adapted` domains are learnt from, the others only predicted.

    `write` gets events in order; `save` gets the number of batches done, after their events were written.
    """
    recorder, saved = Recorder(write), time.monotonic()
    for batch in stream.batches(start):
        learning = batch.domain < adapted
        logits = adapter(batch.images) if learning else adapter.predict(batch.images)
        recorder.add(_about(batch, learning), _scores(adapter, batch, logits, learning))
        ends = stream.ends_domain(batch.number)
        if ends or time.monotonic() - saved >= save_every:
            recorder.flush()
            save(batch.number + 1)
            saved = time.monotonic()


def _about(batch: Batch, learning: bool) -> Event:
    phase = "adapt" if learning else "held_out"
    return {"batch": batch.number, "domain": batch.name, "phase": phase, "images": len(batch.labels)}


def _scores(adapter: Adapter, batch: Batch, logits: Tensor, learning: bool) -> dict[str, Tensor | float | bool]:
    """Errors of a batch and what the adapter tells about it, still on the device."""
    errors = (logits.argmax(1) != batch.labels.to(logits.device, non_blocking=True)).sum()
    told = adapter.diagnostics if learning else {}
    return {"errors": errors, **{k: v.detach().clone() if isinstance(v, Tensor) else v for k, v in told.items()}}


def _to_host(tensors: list[Tensor]) -> list[float]:
    return torch.stack([tensor.float() for tensor in tensors]).tolist() if tensors else []


def _plain(number: float, kind: torch.dtype) -> float | int | bool | None:
    """Give a number back its kind; what JSON cannot hold becomes None."""
    if kind == torch.bool:
        return bool(number)
    if not kind.is_floating_point:
        return int(number)
    return number if math.isfinite(number) else None
