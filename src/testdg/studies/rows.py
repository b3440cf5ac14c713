"""Names of rows: what a bench called them, and otherwise the settings by which variants of a method differ.

The name of a row is no part of what a run is, and two benches may share a run: so it lies beside the result.
"""

import json
import re
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from testdg.core.registry import methods
from testdg.files import replace_text, writing
from testdg.runs import Result
from testdg.runs.compare import by_key
from testdg.spec import RunSpec
from testdg.studies.engine import Complete, Failed
from testdg.studies.statistics import settings_of, unusual

ROWS = "rows.json"
Row = list[Result]
Titled = list[tuple[str, Row]]
_USUAL = "usual settings"
_MOST_SETTINGS = 3  # settings that a row's name can hold


def keep_names(bench: str, specs: Sequence[RunSpec], ends: Sequence[Complete | Failed]) -> None:
    """Note in run folders what a bench calls their rows, and where they stand, as far as it has names of its own."""
    places = {name: place for place, name in enumerate(dict.fromkeys(spec.name for spec in specs))}
    for end in ends:
        spec = specs[end.number]
        if isinstance(end, Complete) and spec.name != method_title(spec.method):
            names = {**read_names(end.result), bench: [places[spec.name], spec.name]}
            with writing(end.result.folder):
                replace_text(end.result.folder / ROWS, json.dumps(names, indent=1) + "\n")


def read_names(result: Result) -> dict[str, list[Any]]:
    """Place and name of a run's row by bench; nothing where it has none that can be read."""
    with suppress(OSError, ValueError, TypeError, AttributeError, RecursionError):
        found = result.rows or json.loads((result.folder / ROWS).read_text(encoding="utf-8"))
        return {str(bench): [int(place), str(name)] for bench, (place, name) in found.items()}
    return {}


def settings_of_row(result: Result) -> dict[str, Any]:
    """What tells rows apart: settings but for the seed, the device, a guard, and a folder of source images."""
    chosen = {"device": result.record["device"], "guard": result.guard is not None, "source": result.source}
    return {**settings_of(result.method), **chosen}


def method_title(name: str) -> str:
    """A method's title; the name itself where it is not known here."""
    known = methods()
    return known[name].title if name in known else name


def by_number(text: str) -> str:
    """A text whose order is that of the numbers in it."""
    return re.sub(r"\d+(?:\.\d+)?(?:e[-+]?\d+)?", lambda number: f"{float(number[0]):040.20f}", text)


def titled_rows(rows: Sequence[Row]) -> Titled:
    """Rows with their names, variants of a method side by side; those that have names stand last, as in their bench."""
    by_method = by_key((row[0].method["name"], row) for row in rows)
    return [titled for name, mine in by_method.items() for titled in _titled(name, mine)]


def _titled(method: str, rows: Sequence[Row]) -> Titled:
    """The variants of one method."""
    placed: list[tuple[tuple[int, Any, str], str, Row]] = []
    for row, (text, differs) in zip(rows, _by_settings(method, rows), strict=True):
        if names := _names(row):
            called = "; ".join(dict.fromkeys(name for _, _, name in names))
            placed.append(((2, names, ""), f"{method_title(method)}: {called}", row))
        else:
            placed.append(((differs, (), by_number(text)), text, row))
    return _told_apart([(name, row) for _, name, row in sorted(placed, key=lambda one: one[0])])


def _names(row: Row) -> list[tuple[str, int, str]]:
    """Bench, place and name of a row, of all benches that it was part of."""
    found = {bench: one for result in row for bench, one in read_names(result).items()}
    return sorted((bench, place, name) for bench, (place, name) in found.items())


def _by_settings(method: str, rows: Sequence[Row]) -> list[tuple[str, bool]]:
    """Names with the settings by which rows differ from all others, or where those are many, from most of them.

    Beside each, whether it differs at all.
    """
    title, settings = method_title(method), [settings_of_row(row[0]) for row in rows]
    if len(rows) == 1:
        return [(title, False)]
    differ = _differing(settings)
    few = len(differ) <= _MOST_SETTINGS
    keys = [differ if few else unusual(one, settings, method) for one in settings]
    return [
        (_named(title, one, mine) if len(mine) <= _MOST_SETTINGS else f"{title}, settings {number}", bool(mine))
        for number, (one, mine) in enumerate(zip(settings, keys, strict=True), 1)
    ]


def _told_apart(rows: Titled) -> Titled:
    """Rows of one name get the settings by which they differ."""
    named: Titled = []
    for name, row in rows:
        same = [settings_of_row(other[0]) for title, other in rows if title == name]
        named.append((name if len(same) == 1 else _named(name, settings_of_row(row[0]), _differing(same)), row))
    return named


def _differing(settings: Sequence[dict[str, Any]]) -> list[str]:
    return [key for key in settings[0] if len({str(one.get(key)) for one in settings}) > 1]


def _named(title: str, settings: dict[str, Any], keys: Sequence[str]) -> str:
    values = ((key, settings.get(key)) for key in keys)
    told = (f"{key}={value if isinstance(value, str) else json.dumps(value)}" for key, value in values)
    return f"{title} ({', '.join(told) or _USUAL})"
