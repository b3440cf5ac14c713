"""Runs stored as lines of one file, `runs.jsonl`, without their folders: a whole result per line."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from testdg.bounds import read_text
from testdg.errors import UserError
from testdg.runs.result import Result

RUNS = "runs.jsonl"


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
