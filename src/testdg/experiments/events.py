"""Events of complete runs, and what their diagnostics come to."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path

from testdg.errors import UserError
from testdg.evaluation.folder import RunFolder
from testdg.evaluation.loop import Event


def read_events(folder: Path) -> list[Event]:
    """Read what a complete run tells of every batch."""
    path = folder / "events.jsonl"
    lines = path.read_bytes().count(b"\n") if path.exists() else 0
    if not lines:
        raise UserError(f"{path} is missing or empty: delete the folder and run again")
    return RunFolder(folder, {}).events(lines)


def count_changes(events: Sequence[Event]) -> int | None:
    """Number of domain changes that the method noticed; None where it does not look for any."""
    told = [event["change"] for event in events if "change" in event]
    return sum(told) if told else None


def mean_diagnostic(events: Sequence[Event], key: str) -> float | None:
    """Mean of a diagnostic over the batches that have it; None where no batch has."""
    values = [event[key] for event in events if event.get(key) is not None]
    return statistics.fmean(values) if values else None
