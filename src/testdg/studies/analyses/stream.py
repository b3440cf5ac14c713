"""The analysis of streams: the error (or mIoU) along the stream, and the changes that methods detect."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from testdg.runs import Result
from testdg.runs.compare import by_key
from testdg.runs.events import Entry, changes, rolling_scores, visit_spans
from testdg.runs.folder import read_events
from testdg.studies.analyses.subject import Numbers, Subject


def compute_stream(subject: Subject) -> Numbers:
    """A rolling score for every named run (mean, lowest and highest over seeds), and the detected changes."""
    return stream_numbers(by_key((spec.name, result) for spec, result in subject.complete()))


def stream_numbers(rows: Mapping[str, Sequence[Result]]) -> Numbers:
    """The same for results on one stream, by name of the row."""
    results = next(iter(rows.values()))
    first = read_events(results[0].folder)
    ends = np.cumsum([event["images"] for event in first])
    visits = []
    for start, stop in visit_spans(first):
        about = {key: first[start].get(key) for key in ("domain", "severity", "round", "phase")}
        visits.append({**about, "start": int(ends[start - 1]) if start else 0, "stop": int(ends[stop - 1])})
    window = max(3, len(first) // 75)  # batches that curves are smoothed over
    return {
        "metric": results[0].metric.describe(),
        "window": window,
        "positions": ends.tolist(),
        "visits": visits,
        "rows": [_row(name, found, window) for name, found in rows.items()],
    }


def _row(name: str, results: Sequence[Result], window: int) -> Numbers:
    runs = [read_events(result.folder) for result in results]
    curves = np.array([rolling_scores(run, results[0].score, window) for run in runs])
    over_seeds = {"curve": curves.mean(0), "low": curves.min(0), "high": curves.max(0)}
    scores = [result.mean_score for result in results]
    return {
        "name": name,
        "method": results[0].method["name"],
        "seeds": [result.record["seed"] for result in results],
        "mean": np.mean([value for value in scores if value is not None]).item(),
        **{key: [None if np.isnan(value) else float(value) for value in curve] for key, curve in over_seeds.items()},
        "detections": [detections(run) for run in runs],
    }


def detections(events: Sequence[Entry]) -> dict[str, Any] | None:
    """Batches with an alarm, the numbers of real and detected changes and of false alarms, and the mean delay.

    A change is detected at the first alarm within its visit; further alarms there are false, and so are those of the
    first visit. None for a method that does not detect changes.
    """
    if (alarms := changes(events)) is None:
        return None
    real = [span for span in visit_spans(events)[1:] if events[span[0]]["phase"] == "adapt"]
    firsts = [next((alarm for alarm in alarms if start <= alarm < stop), None) for start, stop in real]
    delays = [alarm - start for alarm, (start, _) in zip(firsts, real, strict=True) if alarm is not None]
    return {
        "batches": alarms,
        "real_changes": len(real),
        "noticed": len(delays),
        "false_alarms": len(alarms) - len(delays),
        "mean_delay_batches": float(np.mean(delays)) if delays else None,
    }
