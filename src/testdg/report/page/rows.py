"""Names of a table's rows: the method, and what tells its variants apart."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any

from testdg.evaluation import Result
from testdg.experiments.ablations import METHOD, recognise
from testdg.experiments.statistics import settings_of, unusual
from testdg.methods.registry import methods

Row = list[Result]
_MOST_SETTINGS = 3  # settings that a row's name can hold


def settings_of_row(result: Result) -> dict[str, Any]:
    """What tells rows apart: settings but for the seed, and the device."""
    return {**settings_of(result.method), "device": result.protocol["device"]}


def method_title(name: str) -> str:
    """A method's title; the name itself where it is not known here."""
    known = methods()
    return known[name].title if name in known else name


def by_number(text: str) -> str:
    """A text whose order is that of the numbers in it."""
    return re.sub(r"\d+(?:\.\d+)?(?:e[-+]?\d+)?", lambda number: f"{float(number[0]):040.20f}", text)


def titled_rows(rows: Sequence[Row]) -> list[tuple[str, Row]]:
    """Rows with their names, the variants of a method side by side; rows of an ablation have its names and order."""
    found = []
    for name in dict.fromkeys(row[0].method["name"] for row in rows):
        found += _titled(name, [row for row in rows if row[0].method["name"] == name])
    return found


def _titled(method: str, rows: Sequence[Row]) -> list[tuple[str, Row]]:
    """The variants of one method."""
    title, settings = method_title(method), [settings_of_row(row[0]) for row in rows]
    if len(rows) == 1:
        return [(title, rows[0])]
    differ = [key for key in settings[0] if len({str(one.get(key)) for one in settings}) > 1]
    if len(differ) <= _MOST_SETTINGS:
        return [(_named(title, one, differ), row) for one, row in zip(settings, rows, strict=True)]
    known = (
        recognise(settings, settings_of({"name": method, "settings": {}})) if method == METHOD else [None] * len(rows)
    )
    found: list[tuple[float, str, Row]] = []
    for number, (place, one, row) in enumerate(zip(known, settings, rows, strict=True), 1):
        keys = unusual(one, settings, method)  # name only what is not as in most rows
        if place:
            found.append((place[0], f"{title}: {place[1]}", row))
        elif len(keys) <= _MOST_SETTINGS:
            found.append((math.inf if keys else -1, _named(title, one, keys), row))
        else:
            found.append((math.inf, f"{title}, settings {number}", row))
    return [(name, row) for _, name, row in sorted(found, key=lambda one: (one[0], by_number(one[1])))]


def _named(title: str, settings: dict[str, Any], keys: Sequence[str]) -> str:
    return f"{title} ({', '.join(f'{key} {settings[key]}' for key in keys) or 'usual settings'})"
