"""Result: the scores of every visit to a domain, with the record of what they depend on; lines of `runs.jsonl`."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from testdg.bounds import read_text
from testdg.errors import UserError
from testdg.runs.protocol import Visit
from testdg.runs.scores import Metric, Score, Vector, find_score, metric_keys

RUNS = "runs.jsonl"


@dataclass(frozen=True)
class DomainResult:
    """One visit: its scores by key of the metric, as far as they are known and have a meaning.

    For segmentation `error` counts pixels, and `class_iou` has a number per class, None for one that never occurs.
    """

    name: str
    images: int
    scores: Mapping[str, float]
    severity: int | None = None
    round: int = 1
    class_iou: list[float | None] | None = None

    @property
    def error(self) -> float:
        """Share of wrong answers in percent, which every task has."""
        return self.known("error")

    def known(self, key: str) -> float:
        """A score that a table cannot do without."""
        if (found := self.scores.get(key)) is None or not math.isfinite(found):
            message = f"a visit to {self.name} has no {key}: leave its run out, or run it again"
            raise UserError(message, code="missing-score")
        return found

    def to_dict(self) -> dict[str, Any]:
        """The values as plain JSON, with the scores on the same level."""
        about = {"name": self.name, "images": self.images, "severity": self.severity, "round": self.round}
        scores = {key: self.scores.get(key) for key in metric_keys()}
        return {**about, **scores, "class_iou": self.class_iou}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> DomainResult:
        known = {key: float(values[key]) for key in metric_keys() if values.get(key) is not None}
        classes = values.get("class_iou")
        return cls(
            name=str(values["name"]),
            images=int(values["images"]),
            scores=known,
            severity=values.get("severity"),
            round=int(values.get("round", 1)),
            class_iou=None if classes is None else list(classes),
        )


@dataclass(frozen=True)
class Result:
    """What a run found."""

    record: dict[str, Any]
    method: dict[str, Any]
    domains: list[DomainResult]
    held_out: list[DomainResult] | None
    seconds: float
    versions: dict[str, str]
    folder: Path = field(compare=False)
    skipped: int = 0
    """Images of the stream that could not be read and were left out."""
    classes: tuple[str, ...] = ()
    """What the numbers of `class_iou` belong to."""
    skipped_updates: int = 0
    """Updates left out because a loss or a gradient was not finite."""
    guard: dict[str, int] | None = None
    """How often a guard skipped an update, rolled back, fell back to the source; None without one."""
    source: str | None = None
    """The user's folder of source images; None where the benchmark's own were used, or none."""
    rows: Mapping[str, Any] = field(default_factory=dict, compare=False)
    """What benches call its row, if that is stored with it instead of in a folder; see `studies`."""

    @property
    def stream(self) -> tuple[tuple[str, ...], ...]:
        """The domains in the order of the stream, and those that are held out."""
        return tuple(self.record["domains"]), tuple(self.record["held_out"])

    @property
    def score(self) -> Score:
        """What is added up over images."""
        return find_score(self.record["task"])

    @property
    def metric(self) -> Metric:
        """The number that tables show: the error, or mIoU for segmentation."""
        return self.score.metric

    @property
    def mean_score(self) -> float | None:
        """Unweighted mean of that number over the visits that were learnt from."""
        return means(self.domains)[self.metric.key]

    @property
    def held_out_score(self) -> float | None:
        """Unweighted mean of the number that tables show over the held-out domains."""
        return None if self.held_out is None else means(self.held_out)[self.metric.key]

    def to_dict(self) -> dict[str, Any]:
        return {
            "protocol": self.record,
            "method": self.method,
            "domains": [domain.to_dict() for domain in self.domains],
            "mean_error": means(self.domains)["error"],
            "means": means(self.domains),
            "held_out": None if self.held_out is None else [domain.to_dict() for domain in self.held_out],
            "held_out_mean": None if self.held_out is None else means(self.held_out)["error"],
            "held_out_means": None if self.held_out is None else means(self.held_out),
            "skipped": self.skipped,
            "skipped_updates": self.skipped_updates,
            **({} if self.guard is None else {"guard": self.guard}),
            **({} if self.source is None else {"source": self.source}),
            **({"classes": list(self.classes)} if self.classes else {}),
            "seconds": self.seconds,
            "versions": self.versions,
        }

    @classmethod
    def from_dict(cls, values: dict[str, Any], folder: Path) -> Result:
        held_out = values.get("held_out")
        return cls(
            record=values["protocol"],
            method=values["method"],
            domains=[DomainResult.from_dict(domain) for domain in values["domains"]],
            held_out=None if held_out is None else [DomainResult.from_dict(domain) for domain in held_out],
            seconds=float(values["seconds"]),
            versions=values["versions"],
            folder=folder,
            skipped=int(values.get("skipped", 0)),
            classes=tuple(values.get("classes", ())),
            skipped_updates=int(values.get("skipped_updates", 0)),
            guard=values.get("guard"),
            source=values.get("source"),
            rows=values.get("rows", {}),
        )


def means(domains: Sequence[DomainResult]) -> dict[str, float | None]:
    """Unweighted mean of every score; None where a domain has none."""
    return {key: mean_of([domain.scores.get(key) for domain in domains]) for key in metric_keys()}


def mean_of(values: Sequence[float | None]) -> float | None:
    """The mean of some numbers; None where one is not known, and of none."""
    known = [value for value in values if value is not None]
    return statistics.fmean(known) if known and len(known) == len(values) else None


class Tally:
    """Adds up events, visit by visit."""

    def __init__(self, score: Score, visits: Sequence[Visit]) -> None:
        self.score, self.visits = score, tuple(visits)
        self.images: dict[int, int] = {}
        self._sums: dict[int, Vector] = {}

    def add(self, events: Iterable[Mapping[str, Any]]) -> None:
        for part in (part for event in events for part in event["parts"]):
            number, sums = part["segment"], self.score.unpack(part)
            self.images[number] = self.images.get(number, 0) + part["images"]
            self._sums[number] = self._sums[number] + sums if number in self._sums else sums

    def result(self, number: int) -> DomainResult:
        """The scores of one visit, as far as its events are there."""
        visit, images = self.visits[number], self.images[number]
        found = self.score.metrics(self._sums[number], images)
        classes = found.pop("class_iou", None)
        scores = {key: value for key, value in found.items() if value is not None}
        return DomainResult(visit.name, images, scores, visit.severity, visit.round, classes)

    def score_of(self, number: int) -> float | None:
        """The number that tables show of one visit, as far as its events are there."""
        return self.result(number).scores.get(self.score.metric.key)

    def results(self, *, learn: bool) -> list[DomainResult]:
        """The scores of all visits of one kind, in the order of the stream."""
        return [self.result(number) for number, visit in enumerate(self.visits) if visit.learn == learn]


# Results as lines of one file, without their folders


def to_line(result: Result, rows: Mapping[str, Any]) -> str:
    """A run as a line: its result without empty scores, the name of its folder, and what benches call its row."""
    values = {"folder": result.folder.name, **result.to_dict(), "rows": rows or None}
    for key in ("domains", "held_out"):
        values[key] = [_known(visit) for visit in values[key] or ()] or None
    for key in ("means", "held_out_means"):
        values[key] = _known(values[key] or {})
    return json.dumps(_known(values)) + "\n"


def _known(values: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in values.items() if value is not None}


def read_lines(path: Path) -> Iterator[Result | UserError]:
    """Every run of a file, or the error of its line."""
    try:
        lines = read_text(path).splitlines()
    except (OSError, ValueError) as error:
        message = f"{path} cannot be read: {getattr(error, 'strerror', None) or error}"
        raise UserError(message, code="unreadable-file") from error
    for number, line in enumerate(lines, 1):
        try:
            values = json.loads(line)
            yield Result.from_dict(values, path.parent / str(values["folder"]))
        except (KeyError, TypeError, AttributeError, ValueError, IndexError, RecursionError) as error:
            reason = f"it has no {error}" if isinstance(error, KeyError) else error
            message = f"line {number} of {path} is not a run that can be shown ({reason}): leave it out"
            yield UserError(message, code="damaged-line")
