"""Whether a result holds what a report needs: a file that was changed by hand is told, not shown."""

import math
from typing import Any

from testdg.errors import UserError
from testdg.evaluation import DomainResult, Result
from testdg.evaluation.folder import damaged
from testdg.evaluation.protocol import Visit, make_visits
from testdg.report.record import record_lines


def check_result(result: Result) -> Result:
    """Refuse a result whose parts are not what they should be, or do not fit together."""
    try:
        _check_names(result)
        _check_visits(result)
        metric = result.metric
    except (KeyError, TypeError, AttributeError, ValueError, IndexError) as error:
        if not (result.folder / "result.json").exists():  # a line of a file
            raise UserError(f"{result.folder} is no run that can be shown ({error}): leave it out") from error
        raise damaged(result.folder, "result.json", error) from error
    scores = [visit.scores.get(metric.key) for visit in _all(result)]
    if any(score is None or not math.isfinite(score) for score in scores):
        raise UserError(f"{result.folder} has a visit without {metric.name}: leave the folder out, or run it anew")
    return result


def _check_names(result: Result) -> None:
    """The record can be put into words, and what is a name is a text."""
    record_lines(result.record)
    {**result.method["settings"], **result.versions}
    words = [result.record[key] for key in ("benchmark", "kind", "order", "device", "tuning")]
    if not all(isinstance(word, str) for word in [*words, result.method["name"], *result.classes]):
        raise TypeError("a name must be a text")
    if not isinstance(result.record["seed"], int):
        raise TypeError("its seed is no number")


def _check_visits(result: Result) -> None:
    """The visits are those of the record, and have a number, or none, for each class."""
    found = [(visit.name, True) for visit in result.domains] + [(visit.name, False) for visit in result.held_out or []]
    visits = sorted(_visits(result.record), key=lambda visit: not visit.learn)  # tests may come before the end
    if not found or found != [(visit.name, visit.learn) for visit in visits]:
        raise ValueError("its visits are not those of its protocol")
    for classes in (visit.class_iou for visit in _all(result) if visit.class_iou is not None):
        if len(classes) != len(result.classes) or not all(isinstance(v, float | int | None) for v in classes):
            raise ValueError("a visit has other classes")


def _all(result: Result) -> list[DomainResult]:
    return [*result.domains, *(result.held_out or [])]


def _visits(record: dict[str, Any]) -> list[Visit]:
    severity = record["severity"]
    levels = tuple(severity) if isinstance(severity, list) else None if severity == "none" else severity
    return make_visits(record["domains"], record["held_out"], levels, record.get("rounds", 1))
