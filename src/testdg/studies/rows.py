"""Names of rows: those that a bench gave them, otherwise the settings by which variants of a method differ.

A name is not part of a run, and two benches may share a run, so names are stored in a file next to the result.
"""

import json
import re
import statistics
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from typing import Any

from testdg.core.registry import find_method, methods
from testdg.files import replace_text, writing
from testdg.runs import Result
from testdg.runs.compare import by_key
from testdg.schema import plain
from testdg.spec import RunSpec
from testdg.studies.engine import Complete, Failed

ROWS = "rows.json"
Row = list[Result]
Name = tuple[str, int, str]
"""Bench, place and name of a row."""
Titled = list[tuple[str, Row]]
_USUAL = "usual settings"
_MOST_SETTINGS = 3  # settings that a row's name can hold


def store_names(bench: str, specs: Sequence[RunSpec], ends: Sequence[Complete | Failed]) -> None:
    """Store the names and places of rows in the run folders, unless a name is the title of the method."""
    places = {name: place for place, name in enumerate(dict.fromkeys(spec.name for spec in specs))}
    for end in ends:
        spec = specs[end.number]
        if isinstance(end, Complete) and spec.name != method_title(spec.method):
            names = {**read_names(end.result), bench: [places[spec.name], spec.name]}
            with writing(end.result.folder):
                replace_text(end.result.folder / ROWS, json.dumps(names, indent=1) + "\n")


def read_names(result: Result) -> dict[str, tuple[int, str]]:
    """Place and name of a run's row by bench; empty if no name can be read."""
    with suppress(OSError, ValueError, TypeError, AttributeError, RecursionError):
        found = result.rows or json.loads((result.folder / ROWS).read_text(encoding="utf-8"))
        return {str(bench): (int(place), str(name)) for bench, (place, name) in found.items()}
    return {}


def settings_of_row(result: Result) -> dict[str, Any]:
    """What distinguishes rows: settings except for the seed, the device, a guard, and a folder of source images."""
    chosen = {"device": result.record["device"], "guard": result.guard is not None, "source": result.source}
    return {**settings_of(result.method), **chosen}


def method_title(name: str) -> str:
    """The title of a method; its name if the method is unknown."""
    known = methods()
    return known[name].title if name in known else name


def by_number(text: str) -> str:
    """A key that sorts texts by the numbers in them."""
    return re.sub(r"\d+(?:\.\d+)?(?:e[-+]?\d+)?", lambda number: f"{float(number[0]):040.20f}", text)


def titled_rows(rows: Sequence[Row]) -> Titled:
    """Rows with their names, grouped by method; those with names of a bench come last, in its order."""
    by_method = by_key((row[0].method["name"], row) for row in rows)
    return [titled for name, mine in by_method.items() for titled in _titled(name, mine)]


def _titled(method: str, rows: Sequence[Row]) -> Titled:
    """The variants of one method."""
    placed: list[tuple[tuple[int, list[Name], str], str, Row]] = []
    for row, (text, differs) in zip(rows, _by_settings(method, rows), strict=True):
        if names := _names(row):
            called = "; ".join(dict.fromkeys(name for _, _, name in names))
            placed.append(((2, names, ""), f"{method_title(method)}: {called}", row))
        else:
            placed.append(((differs, [], by_number(text)), text, row))
    return _distinct([(name, row) for _, name, row in sorted(placed, key=lambda one: one[0])])


def _names(row: Row) -> list[Name]:
    """The names that benches gave a row."""
    found = {bench: one for result in row for bench, one in read_names(result).items()}
    return sorted((bench, place, name) for bench, (place, name) in found.items())


def _by_settings(method: str, rows: Sequence[Row]) -> list[tuple[str, bool]]:
    """Names with the settings by which rows differ from all others, or if those are many, from most of them.

    Each comes with whether the row differs at all.
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


def _distinct(rows: Titled) -> Titled:
    """Rows with equal names get the settings by which they differ."""
    named: Titled = []
    for name, row in rows:
        same = [settings_of_row(other[0]) for title, other in rows if title == name]
        named.append((name if len(same) == 1 else _named(name, settings_of_row(row[0]), _differing(same)), row))
    return named


def _differing(settings: Sequence[dict[str, Any]]) -> list[str]:
    return [key for key in settings[0] if len({str(one.get(key)) for one in settings}) > 1]


def _named(title: str, settings: dict[str, Any], keys: Sequence[str]) -> str:
    values = ((key, settings.get(key)) for key in keys)
    shown = (f"{key}={value if isinstance(value, str) else json.dumps(value)}" for key, value in values)
    return f"{title} ({', '.join(shown) or _USUAL})"


def settings_of(method: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a result's method, seed apart; a setting that the result lacks has its default."""
    name = method["name"]
    defaults = plain(asdict(find_method(name).Settings())) if name in methods() else {}
    return {key: value for key, value in {**defaults, **method["settings"]}.items() if key != "seed"}


def unusual(mine: Mapping[str, Any], all_of_them: Sequence[Mapping[str, Any]], method: str) -> list[str]:
    """Settings of a variant whose value is not the most frequent one among all variants (in a tie, the default)."""
    defaults = settings_of({"name": method, "settings": {}})
    usual = {key: _most_frequent([one.get(key) for one in all_of_them], defaults.get(key)) for key in mine}
    return [key for key, value in mine.items() if json.dumps(value) != usual[key]]


def _most_frequent(values: Sequence[Any], default: Any) -> str:
    found = statistics.multimode(json.dumps(value) for value in values)
    return text if (text := json.dumps(default)) in found else found[0]
