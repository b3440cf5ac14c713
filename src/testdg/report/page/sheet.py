"""Sheet: a table as a value, before it becomes HTML, Markdown, LaTeX or CSV."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from testdg.evaluation.scores import Metric


class Entry(NamedTuple):
    """A number, with its deviation over runs or its interval; or a text."""

    value: float | None = None
    deviation: float | None = None
    low: float | None = None
    high: float | None = None
    text: str = ""


@dataclass(frozen=True)
class Column:
    """What the entries below a title are."""

    title: str
    higher: bool | None = None
    """Whether a higher number is better; None where none is best."""
    digits: int = 1
    signed: bool = False
    over: str = ""
    """A second title, above those of neighbours that share it."""
    summary: bool = False

    @classmethod
    def of(cls, metric: Metric, title: str = "", more: int = 0, **others: Any) -> Column:
        """A column of numbers of a metric, perhaps under another title and with more digits."""
        return cls(title or metric.title, metric.higher, metric.digits + more, **others)

    @classmethod
    def gains(cls, metric: Metric, title: str = "gain", more: int = 0) -> Column:
        """A column that says how much better numbers of a metric are."""
        return cls(title, True, metric.digits + more, signed=True)

    def show(self, number: float) -> str:
        """A number as text."""
        return f"{number:{'+' if self.signed else '-'}z.{self.digits}f}"


class Shown(NamedTuple):
    """An entry as text."""

    text: str
    deviation: str
    best: bool
    value: float | None


@dataclass(frozen=True)
class Sheet:
    """Rows of entries under columns; `note` says what the numbers are."""

    title: str
    note: str
    columns: Sequence[Column]
    rows: Sequence[tuple[str, Sequence[Entry]]]

    def shown(self) -> list[tuple[str, list[Shown]]]:
        """Every row as texts; the best number of a column is marked, and so are all that look the same."""
        best = [self._best(place) for place in range(len(self.columns))]
        return [
            (name, [_show(*each) for each in zip(entries, self.columns, best, strict=True)])
            for name, entries in self.rows
        ]

    def _best(self, place: int) -> str | None:
        column = self.columns[place]
        values = [value for _, entries in self.rows if (value := entries[place].value) is not None]
        if column.higher is None or len(values) < 2:
            return None
        return column.show(max(values) if column.higher else min(values))

    def overs(self) -> list[tuple[str, int]]:
        """The second titles, each with the number of columns below it; nothing where there are none."""
        spans: list[tuple[str, int]] = []
        for column in self.columns:
            if spans and spans[-1][0] == column.over and column.over:
                spans[-1] = (column.over, spans[-1][1] + 1)
            else:
                spans.append((column.over, 1))
        return spans if any(title for title, _ in spans) else []


def _show(entry: Entry, column: Column, best: str | None) -> Shown:
    if entry.value is None:
        return Shown(entry.text, "", False, None)
    text = column.show(entry.value)
    deviation = "" if entry.deviation is None else f"{entry.deviation:.{column.digits}f}"
    return Shown(text, deviation, text == best, entry.value)
