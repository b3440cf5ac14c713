"""Runs of a report: read from folders and from files of runs, and checked."""

import json
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from testdg.errors import UserError
from testdg.report.record import record_pairs
from testdg.runs import Result, read_result
from testdg.runs.folder import damaged
from testdg.runs.protocol import make_visits
from testdg.runs.result import RUNS, read_lines
from testdg.studies.rows import settings_of_row


class Runs(NamedTuple):
    """What some folders and files hold."""

    results: list[Result]
    unfinished: int
    """Runs that are not complete."""
    copies: int
    """Complete runs that are there more than once."""
    damaged: list[str]
    """Why runs could not be used, a sentence each."""


def read_runs(paths: Sequence[Path]) -> Runs:
    """Read every complete run in some folders or below them; one that cannot be used is left out, with the reason."""
    places = {path: [path] if path.is_file() else [*path.rglob("result.json"), *path.rglob(RUNS)] for path in paths}
    if empty := [path for path, files in places.items() if not files]:
        expected = f"holds no result.json and no {RUNS}, nor does a folder below it: name folders of complete runs"
        raise UserError("; ".join(f"{path} {expected}" for path in empty), code="no-runs")
    files = {file.resolve(): file for several in places.values() for file in several}
    begun = {file.parent.resolve() for path in paths for file in path.rglob("config.toml")}
    complete = {file.parent for file in files}
    results: dict[str, Result] = {}
    unusable, copies = [], 0
    for _, file in sorted(files.items(), key=lambda one: (one[0].name == RUNS, one)):  # folders before lines of files
        for result in _read(file):
            if isinstance(result, UserError):
                unusable.append(str(result))
                continue
            record = {key: value for key, value in result.record.items() if key != "tuning"}
            identity = json.dumps([record, row_key(result)], sort_keys=True)
            copies += identity in results
            results.setdefault(identity, result)
    if not results:
        raise UserError("; ".join(few(unusable)), code="damaged-file")
    return Runs(list(results.values()), len(begun - complete), copies, unusable)


def _read(file: Path) -> Iterator[Result | UserError]:
    """The run of a folder, or those of a file, each checked."""
    try:
        for result in [read_result(file.parent)] if file.name == "result.json" else read_lines(file):
            yield result if isinstance(result, UserError) else check_result(result)
    except UserError as error:
        yield error


def few(sentences: Sequence[str]) -> list[str]:
    """The first three of many sentences, and how many more there are."""
    rest = len(sentences) - 3
    return [*sentences[:3], *([f"{rest} more"] if rest > 0 else [])]


def check_result(result: Result) -> Result | UserError:
    """The result, or why it cannot be shown: its parts are not what they should be, or do not fit together."""
    visits = [*result.domains, *(result.held_out or [])]
    try:
        _check_names(result)
        _check_visits(result)
        metric = result.metric
    except (KeyError, TypeError, AttributeError, ValueError, IndexError) as error:
        if not (result.folder / "result.json").exists():  # a line of a file
            return UserError(f"{result.folder} cannot be shown ({error}): leave it out", code="damaged-file")
        return damaged(result.folder, "result.json", error)
    scores = [visit.scores.get(metric.key) for visit in visits]
    if any(score is None or not math.isfinite(score) for score in scores):
        message = f"{result.folder} has a visit without {metric.name}: leave the folder out, or run it again"
        return UserError(message, code="missing-score")
    return result


def _check_names(result: Result) -> None:
    """The record can be put into words, and names are texts."""
    record_pairs(result.record)
    {**result.method["settings"], **result.versions}
    words = [result.record[key] for key in ("benchmark", "kind", "order", "device", "tuning")]
    if not all(isinstance(word, str) for word in [*words, result.method["name"], *result.classes]):
        raise TypeError("a name must be a text")
    if not isinstance(result.record["seed"], int):
        raise TypeError("its seed is not a number")


def _check_visits(result: Result) -> None:
    """The visits are those of the record, and have a number, or none, for each class."""
    visits = [*result.domains, *(result.held_out or [])]
    found = [(visit.name, number < len(result.domains)) for number, visit in enumerate(visits)]
    record, levels = result.record, result.record["severity"]
    if isinstance(levels, list):
        levels = tuple(levels)
    elif levels == "none":
        levels = None
    expected = make_visits(record["domains"], record["held_out"], levels, record["rounds"])
    expected.sort(key=lambda visit: not visit.learn)  # tests may come before the end
    if not found or found != [(visit.name, visit.learn) for visit in expected]:
        raise ValueError("its visits are not those of its protocol")
    for overlaps in (visit.class_iou for visit in visits if visit.class_iou is not None):
        numbers = all(isinstance(value, float | int | None) for value in overlaps)
        if len(overlaps) != len(result.classes) or not numbers:
            raise ValueError("a visit has other classes")


def row_key(result: Result) -> str:
    """What the results of a row have in common."""
    return json.dumps([result.method["name"], settings_of_row(result)], sort_keys=True)
