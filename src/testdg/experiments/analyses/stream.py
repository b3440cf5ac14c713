"""The error (or mIoU) along the stream, and the changes that methods notice."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Any

import numpy as np

from testdg.evaluation.loop import Event
from testdg.evaluation.scores import Score, find_score
from testdg.experiments.analyses.case import Array, Case, Numbers
from testdg.experiments.events import read_events

Span = tuple[int, int]


def compute(case: Case) -> Numbers:
    """A rolling score for every named run (mean, lowest and highest over seeds), and where changes were noticed."""
    found = case.found()
    task = found[0][1].protocol["task"]
    score = find_score(task)
    events = {id(result): read_events(result.folder) for _, result in found}
    first = events[id(found[0][1])]
    window = max(3, len(first) // 75)
    ends = np.cumsum([event["images"] for event in first])
    spans = visits(first)
    rows = []
    for name in dict.fromkeys(cell.name for cell, _ in found):
        runs = [events[id(result)] for cell, result in found if cell.name == name]
        curves = np.array([rolling(run, spans, window, score) for run in runs])
        scores = [result.mean_score for cell, result in found if cell.name == name]
        rows.append(
            {
                "name": name,
                "seeds": [cell.seed for cell, _ in found if cell.name == name],
                "mean": np.mean([value for value in scores if value is not None]).item(),
                "curve": _plain(curves.mean(0)),
                "low": _plain(curves.min(0)),
                "high": _plain(curves.max(0)),
                "detections": [detections(run, spans) for run in runs],
            }
        )
    return {
        "metric": score.metric.describe(),
        "window": window,
        "positions": ends.tolist(),
        "visits": [_visit(first[a], int(ends[a - 1]) if a else 0, int(ends[b - 1])) for a, b in spans],
        "rows": rows,
    }


def _plain(values: Array) -> list[float | None]:
    """Numbers for JSON, which has no NaN."""
    return [None if np.isnan(value) else float(value) for value in values]


def _visit(event: Event, start: int, stop: int) -> dict[str, Any]:
    return {key: event.get(key) for key in ("domain", "severity", "round", "phase")} | {"start": start, "stop": stop}


def visits(events: Sequence[Event]) -> list[Span]:
    """First batch, and the one after the last, of each visit to a domain."""
    keys = [(event["round"], event["phase"], event["domain"], event["severity"]) for event in events]
    lengths = [len(list(group)) for _, group in groupby(keys)]
    stops = np.cumsum(lengths).tolist()
    return list(zip([0, *stops[:-1]], stops, strict=True))


def rolling(events: Sequence[Event], spans: Sequence[Span], window: int, score: Score) -> list[float]:
    """The score of the last batches of the same visit, after each batch; NaN where it has no meaning."""
    sums = np.array([np.sum([score.unpack(part) for part in event["parts"]], 0) for event in events])  # (batches, K)
    values = []
    for start, stop in spans:
        for number in range(start, stop):
            last = range(max(start, number + 1 - window), number + 1)
            images = sum(events[place]["images"] for place in last)
            found = score.metrics(sums[last.start : last.stop].sum(0), images)[score.metric.key]
            values.append(float("nan") if found is None else float(found))
    return values


def detections(events: Sequence[Event], spans: Sequence[Span]) -> dict[str, Any] | None:
    """Batches at which a change was noticed; how many real changes were, how late, and how many alarms were false.

    A change counts as noticed at the first alarm within its visit; all further alarms there are false, and so are
    those of the first visit. None for a method that does not look for changes.
    """
    if not any("change" in event for event in events):
        return None
    alarms = [number for number, event in enumerate(events) if event.get("change") is True]
    real = [span for span in spans[1:] if events[span[0]]["phase"] == "adapt"]
    firsts = [next((alarm for alarm in alarms if start <= alarm < stop), None) for start, stop in real]
    delays = [alarm - start for alarm, (start, _) in zip(firsts, real, strict=True) if alarm is not None]
    return {
        "batches": alarms,
        "real_changes": len(real),
        "noticed": len(delays),
        "false_alarms": len(alarms) - len(delays),
        "mean_delay_batches": float(np.mean(delays)) if delays else None,
    }
