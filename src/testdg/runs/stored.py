"""Runs that are kept as lines of one file, `runs.jsonl`, when their folders are gone.

A line is a whole result, or the essentials of one: method, settings, seed, scores by domain (by round, where there are
several), and of the record what differs from the line `{"common": {...}}` above it.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from testdg.bounds import read_text
from testdg.errors import UserError
from testdg.methods import methods
from testdg.runs.record import OWN_ORDERS, RESETS
from testdg.runs.result import DomainResult, Result

RUNS = "runs.jsonl"


def to_line(result: Result, rows: Mapping[str, Any]) -> str:
    """A run as a line: its result, the name of its folder, and what benches call its row."""
    return json.dumps({"folder": result.folder.name, **result.to_dict(), **({"rows": rows} if rows else {})}) + "\n"


def read_lines(path: Path) -> Iterator[Result | UserError]:
    """Every run of a file, or why its line is none."""
    common: dict[str, Any] = {}
    try:
        lines = read_text(path).splitlines()
    except (OSError, ValueError) as error:
        message = f"{path} cannot be read: {getattr(error, 'strerror', None) or error}"
        raise UserError(message, code="unreadable-file") from error
    for number, line in enumerate(lines, 1):
        try:
            values = json.loads(line)
            if "common" in values:
                common = dict(values["common"])
            elif "domains" in values:
                yield Result.from_dict(values, path.parent / str(values["folder"]))
            else:
                yield _read_short(values, common, path.parent / f"{path.name} line {number}")
        except (KeyError, TypeError, AttributeError, ValueError, IndexError, RecursionError) as error:
            reason = f"it has no {error}" if isinstance(error, KeyError) else error
            yield UserError(
                f"line {number} of {path} is not a run that can be shown ({reason}): leave it out", code="damaged-file"
            )


def _read_short(values: dict[str, Any], common: Mapping[str, Any], place: Path) -> Result:
    """A result from its essentials."""
    rounds = values["scores"] if isinstance(values["scores"][0], list) else [values["scores"]]
    record = {"order": OWN_ORDERS[0], "resets": RESETS["once"], "held_out": [], "rounds": len(rounds), **common}
    record |= values.get("protocol", {})
    record |= {"images_per_domain": values["images"]} if "images" in values else {}
    record |= {"held_out": record["domains"][values["fork"] :]} if "fork" in values else {}
    record |= {"seed": values["seed"], "tuning": f"as kept of {values['experiment']}"}
    tested = _visits("held_out", values.get("held_out", []), record, 1)
    preset = {"preset": values["preset"]} if "preset" in values else {}
    settings = {"seed": values["seed"], **preset, **values.get("settings", {})}
    known = methods().get(values["method"])
    named = known is None or known.title != values["name"]
    return Result(
        record=record,
        method={"name": values["method"], "settings": settings},
        domains=[visit for n, scores in enumerate(rounds, 1) for visit in _visits("domains", scores, record, n)],
        held_out=tested or None,
        seconds=0.0,
        versions={},
        folder=place,
        rows={values["experiment"]: [0, values["name"]]} if named else {},
    )


def _visits(which: str, scores: Sequence[float], record: Mapping[str, Any], number: int) -> list[DomainResult]:
    """The visits of one round, in the order of the record."""
    key = "miou" if record["task"] == "segmentation" else "error"
    images, severity = record["images_per_domain"], record["severity"]
    pairs = zip(record[which], scores, strict=True)
    return [DomainResult(name, images, {key: float(score)}, severity, number) for name, score in pairs]
