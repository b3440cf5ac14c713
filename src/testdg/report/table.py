"""Table: numbers under titles as a value, before it becomes text or a part of a page."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

import rich.table
from rich.markup import escape

from testdg.errors import visible
from testdg.runs.scores import Metric
from testdg.studies.summary import Spread

Item = TypeVar("Item")


class Cell(NamedTuple):
    """A number, with its deviation over runs or its interval; or a text."""

    value: float | None = None
    deviation: float | None = None
    low: float | None = None
    high: float | None = None
    text: str = ""
    digits: int | None = None
    """Where they are not those of the column."""

    @classmethod
    def of(cls, spread: Spread | None) -> Cell:
        """The mean of some runs and its deviation; an empty cell without them."""
        return cls() if spread is None else cls(spread.mean, spread.deviation)


@dataclass(frozen=True)
class TableColumn:
    """What the cells below a title are."""

    title: str
    higher: bool | None = None
    """Whether a higher number is better; None where none is best."""
    digits: int = 1
    signed: bool = False
    over: str = ""
    """A second title, above those of neighbours that share it."""
    summary: bool = False

    @classmethod
    def of(
        cls, metric: Metric, title: str = "", more: int = 0, over: str = "", *, summary: bool = False
    ) -> TableColumn:
        """Numbers of a metric, with `more` digits than usual."""
        return cls(title or metric.title, metric.higher, metric.digits + more, over=over, summary=summary)

    @classmethod
    def gains(cls, metric: Metric, title: str = "gain", more: int = 0) -> TableColumn:
        """How much better numbers of a metric are, with `more` digits than usual."""
        return cls(title, True, metric.digits + more, signed=True)

    def show(self, number: float, digits: int | None = None) -> str:
        """A number as text; what rounds to zero has no minus."""
        return f"{number:{'+' if self.signed else '-'}z.{self.digits if digits is None else digits}f}"


class CellText(NamedTuple):
    """A cell as text, without and with its deviation, and whether it is the best of its column."""

    text: str
    deviation: str
    best: bool
    value: float | None

    def __str__(self) -> str:
        return f"{self.text} ± {self.deviation}" if self.deviation else self.text


@dataclass(frozen=True)
class Table:
    """Rows of cells under columns; `note` says what the numbers are."""

    title: str
    note: str
    columns: Sequence[TableColumn]
    rows: Sequence[tuple[str, Sequence[Cell]]]
    corner: str = "method"
    summaries: Collection[str] = ()
    """Rows that sum up others."""

    def shown(self) -> list[tuple[str, list[CellText]]]:
        """Every row as texts; the best number of a column is marked, and so are all that look the same."""
        columns = [self._texts(column, place) for place, column in enumerate(self.columns)]
        return [(name, [texts[number] for texts in columns]) for number, (name, _) in enumerate(self.rows)]

    def _texts(self, column: TableColumn, place: int) -> list[CellText]:
        cells = [cells[place] for _, cells in self.rows]
        values = [cell.value for cell in cells if cell.value is not None]
        best = None
        if column.higher is not None and len(values) > 1:
            best = column.show(max(values) if column.higher else min(values))
        found = []
        for cell in cells:
            text = cell.text if cell.value is None else column.show(cell.value, cell.digits)
            deviation = "" if cell.deviation is None else f"{cell.deviation:.{column.digits}f}"
            found.append(CellText(text, deviation, cell.value is not None and text == best, cell.value))
        return found

    def header(self) -> list[str]:
        """The titles in one line."""
        return [self.corner, *(f"{one.title} ({one.over})" if one.over else one.title for one in self.columns)]

    def cells(self) -> list[list[str]]:
        """The texts of all rows."""
        return [[name, *map(str, cells)] for name, cells in self.shown()]

    def overs(self) -> list[tuple[str, int]]:
        """The second titles, each with the number of columns below it; nothing where there are none."""
        spans: list[tuple[str, int]] = []
        for column in self.columns:
            if spans and spans[-1][0] == column.over and column.over:
                spans[-1] = (column.over, spans[-1][1] + 1)
            else:
                spans.append((column.over, 1))
        return spans if any(title for title, _ in spans) else []


Field = tuple[TableColumn, Callable[[Item], Cell]]
"""A column, and what computes its cells."""


def tabulate(
    title: str, note: str, fields: Sequence[Field[Item]], items: Iterable[tuple[str, Item]], corner: str = "method"
) -> Table:
    """A row for each named item, a column for each field."""
    rows = [(name, [cell(item) for _, cell in fields]) for name, item in items]
    return Table(title, note, [column for column, _ in fields], rows, corner)


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
    for (name, cells), following in zip(table.shown(), [*names[1:], ""], strict=True):
        texts = []
        for cell, column in zip(cells, table.columns, strict=True):
            text, value = escape(visible(str(cell))), cell.value
            if value is not None and column.signed:
                colour = "green" if value > 0 else "red" if value < 0 else "dim"
                text = f"[{colour}]{text}[/]"
            texts.append(text)
        summary = name in table.summaries
        ends = summary or following in table.summaries
        shown.add_row(escape(visible(name)), *texts, style="bold" if summary else None, end_section=ends)
    return shown
