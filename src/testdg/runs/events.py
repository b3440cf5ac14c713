"""The log of a run: one entry a batch, and what entries amount to over visits and windows of batches."""

import json
import math
import statistics
from collections.abc import Sequence
from itertools import groupby
from typing import Any

import numpy as np

from testdg.runs.scores import Score

Entry = dict[str, Any]
Span = tuple[int, int]
"""First batch, and the one after the last."""
_KINDS = {"domain": str, "phase": str, "images": int, "errors": int, "diagnostics": dict, "parts": list}
_VISIT = ("round", "phase", "domain", "severity")  # what tells one visit from the next


def read_entry(number: int, line: bytes) -> Entry:
    event: Entry = json.loads(line)
    if event["batch"] != number:
        raise ValueError(f"line {number + 1} is batch {event['batch']}")
    for key, kind in _KINDS.items():
        if not isinstance(event[key], kind):
            raise TypeError(f"line {number + 1}: {key} is {event[key]!r}")
    return event


def changes(events: Sequence[Entry]) -> list[int] | None:
    """Batches at which the method noticed a change; None where it does not look for any."""
    reported = [event["diagnostics"].get("change") for event in events]
    if all(change is None for change in reported):
        return None
    return [number for number, change in enumerate(reported) if change is True]


def count_changes(events: Sequence[Entry]) -> int | None:
    """Number of changes that the method noticed; None where it does not look for any."""
    found = changes(events)
    return None if found is None else len(found)


def mean_diagnostic(events: Sequence[Entry], key: str) -> float | None:
    """Mean of a diagnostic over the batches that have it; None where no batch has."""
    values = [value for event in events if (value := event["diagnostics"].get(key)) is not None]
    return statistics.fmean(values) if values else None


def visit_spans(events: Sequence[Entry]) -> list[Span]:
    keys = [[event.get(key) for key in _VISIT] for event in events]
    stops = np.cumsum([len(list(group)) for _, group in groupby(keys)]).tolist()
    return list(zip([0, *stops[:-1]], stops, strict=True))


def rolling_scores(events: Sequence[Entry], score: Score, window: int) -> list[float]:
    """The score of the last batches of the same visit, after each batch; NaN where it has no meaning."""
    sums = np.array([sum(map(score.unpack, event["parts"])) for event in events])  # (batches, K)
    images = np.array([event["images"] for event in events])
    values = []
    for start, stop in visit_spans(events):
        for number in range(start, stop):
            last = slice(max(start, number + 1 - window), number + 1)
            found = score.metrics(sums[last].sum(0), int(images[last].sum()))[score.metric.key]
            values.append(math.nan if found is None else float(found))
    return values
