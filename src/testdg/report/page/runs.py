"""What a report is made of: run folders, and files of runs that are kept as lines."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from testdg.errors import UserError
from testdg.evaluation import Result, read_result
from testdg.evaluation.kept import RUNS, read_lines
from testdg.report.page.check import check_result
from testdg.report.page.groups import row_key


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
    """Read every complete run in some folders or below them; one that cannot be used is left out, and says why."""
    places = {path: [path] if path.is_file() else [*path.rglob("result.json"), *path.rglob(RUNS)] for path in paths}
    if empty := [path for path, files in places.items() if not files]:
        expected = f"holds no result.json and no {RUNS}, nor does a folder below it: name folders of complete runs"
        raise UserError("; ".join(f"{path} {expected}" for path in empty))
    files = {file.resolve(): file for several in places.values() for file in several}
    begun = {file.parent.resolve() for path in paths for file in path.rglob("config.toml")}
    complete = {file.parent for file in files}
    results: dict[str, Result] = {}
    damaged, copies = [], 0
    for _, file in sorted(files.items(), key=lambda one: (one[0].name == RUNS, one)):  # the same copy stays
        for result in _read(file):
            if isinstance(result, UserError):
                damaged.append(str(result))
            else:
                copies += _identity(result) in results
                results.setdefault(_identity(result), result)
    if not results:
        raise UserError("; ".join(few(damaged)))
    return Runs(list(results.values()), len(begun - complete), copies, damaged)


def _read(file: Path) -> Iterator[Result | UserError]:
    """The run of a folder, or those of a file, each checked."""
    try:
        for result in [read_result(file.parent)] if file.name == "result.json" else read_lines(file):
            yield result if isinstance(result, UserError) else _checked(result)
    except UserError as error:
        yield error


def _checked(result: Result) -> Result | UserError:
    try:
        return check_result(result)
    except UserError as error:
        return error


def few(sentences: Sequence[str]) -> list[str]:
    """The first three of many sentences, and how many more there are."""
    rest = len(sentences) - 3
    return [*sentences[:3], *([f"{rest} more"] if rest > 0 else [])]


def _identity(result: Result) -> str:
    """What makes a run the same as another; how its settings came to be does not count."""
    record = {key: value for key, value in result.record.items() if key != "tuning"}
    return json.dumps([record, row_key(result)], sort_keys=True)
