"""Table: numbers under titles as a value, before it becomes text or a part of a page."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import rich.table
from rich.markup import escape

from testdg.errors import visible
from testdg.runs.scores import Metric
from testdg.studies.summary import Spread


class Entry(NamedTuple):
    """A number, with its deviation over runs or its interval; or a text."""

    value: float | None = None
    deviation: float | None = None
    low: float | None = None
    high: float | None = None
    text: str = ""
    digits: int | None = None
    """Where they are not those of the column."""

    @classmethod
    def of(cls, spread: Spread | None) -> Entry:
        """The mean of some runs and its deviation, if there is one."""
        return cls() if spread is None else cls(spread.mean, spread.deviation)


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
        """A column of numbers of a metric, with another title and more digits where they are given."""
        return cls(title or metric.title, metric.higher, metric.digits + more, **others)

    @classmethod
    def gains(cls, metric: Metric, title: str = "gain", more: int = 0) -> Column:
        """A column that says how much better numbers of a metric are."""
        return cls(title, True, metric.digits + more, signed=True)

    def show(self, number: float, digits: int | None = None) -> str:
        """A number as text; what rounds to zero has no minus."""
        return f"{number:{'+' if self.signed else '-'}z.{self.digits if digits is None else digits}f}"


class Shown(NamedTuple):
    """An entry as text."""

    text: str
    deviation: str
    best: bool
    value: float | None

    def __str__(self) -> str:
        return f"{self.text} ± {self.deviation}" if self.deviation else self.text


@dataclass(frozen=True)
class Table:
    """Rows of entries under columns; `note` says what the numbers are."""

    title: str
    note: str
    columns: Sequence[Column]
    rows: Sequence[tuple[str, Sequence[Entry]]]
    corner: str = "method"
    summaries: Collection[str] = ()
    """Rows that sum up others."""

    def shown(self) -> list[tuple[str, list[Shown]]]:
        """Every row as texts; the best number of a column is marked, and so are all that look the same."""
        best: list[str | None] = []
        for place, column in enumerate(self.columns):
            values = [value for _, entries in self.rows if (value := entries[place].value) is not None]
            known = column.higher is not None and len(values) > 1
            best.append(column.show(max(values) if column.higher else min(values)) if known else None)
        rows = []
        for name, entries in self.rows:
            texts = []
            for entry, column, first in zip(entries, self.columns, best, strict=True):
                text = entry.text if entry.value is None else column.show(entry.value, entry.digits)
                deviation = "" if entry.deviation is None else f"{entry.deviation:.{column.digits}f}"
                texts.append(Shown(text, deviation, entry.value is not None and text == first, entry.value))
            rows.append((name, texts))
        return rows

    def header(self) -> list[str]:
        """The first line."""
        return [self.corner, *(f"{one.title} ({one.over})" if one.over else one.title for one in self.columns)]

    def cells(self) -> list[list[str]]:
        """The texts of all rows."""
        return [[name, *map(str, entries)] for name, entries in self.shown()]

    def overs(self) -> list[tuple[str, int]]:
        """The second titles, each with the number of columns below it; nothing where there are none."""
        spans: list[tuple[str, int]] = []
        for column in self.columns:
            if spans and spans[-1][0] == column.over and column.over:
                spans[-1] = (column.over, spans[-1][1] + 1)
            else:
                spans.append((column.over, 1))
        return spans if any(title for title, _ in spans) else []


def plain_table(table: Table) -> list[str]:
    """Lines of aligned text: the first column to the left, the others to the right."""
    lines = [[visible(text) for text in line] for line in (table.header(), *table.cells())]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    padded = ([line[0].ljust(widths[0]), *map(str.rjust, line[1:], widths[1:])] for line in lines)
    return ["  ".join(line).rstrip() for line in padded]


def rich_table(table: Table) -> rich.table.Table:
    """A table for a terminal; gains green, losses red."""
    shown = rich.table.Table()
    for number, title in enumerate(table.header()):
        shown.add_column(escape(visible(title)), justify="right" if number else "left")
    names = [name for name, _ in table.rows]
    for (name, entries), following in zip(table.shown(), [*names[1:], ""], strict=True):
        cells = []
        for entry, column in zip(entries, table.columns, strict=True):
            text, value = escape(visible(str(entry))), entry.value
            colour = "green" if (value or 0) > 0 else "red" if (value or 0) < 0 else "dim"
            cells.append(text if value is None or not column.signed else f"[{colour}]{text}[/]")
        summary = name in table.summaries
        ends = summary or following in table.summaries
        shown.add_row(escape(visible(name)), *cells, style="bold" if summary else None, end_section=ends)
    return shown
