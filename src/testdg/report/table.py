"""Tables: scores of several methods side by side, means last. `tables.py` says which tables a result has."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import rich.table
from rich.markup import escape

from testdg.errors import visible
from testdg.evaluation.scores import Classification, Metric


@dataclass(frozen=True)
class Row:
    """One line of a table: a number for each column; None where there is none (yet)."""

    name: str
    values: tuple[float | None, ...]
    summary: bool = False
    compared: bool = True
    metric: Metric = Classification.metric

    @property
    def gain(self) -> float | None:
        """How much better the last column is than the first."""
        first, last = self.values[0], self.values[-1]
        if not self.compared or first is None or last is None:
            return None
        return self.metric.gain(first, last)

    def cells(self) -> list[str]:
        """The name and the numbers as text."""
        return [self.name, *("" if value is None else f"{value:.{self.metric.digits}f}" for value in self.values)]


@dataclass(frozen=True)
class Table:
    """Rows under titles; with `gain`, a last column says how much better the last number is than the first."""

    corner: str
    titles: Sequence[str]
    rows: Sequence[Row]
    gain: bool = True

    @property
    def header(self) -> list[str]:
        """The first line."""
        return [self.corner, *self.titles, *(["gain"] if self._gains else [])]

    @property
    def _gains(self) -> bool:
        return self.gain and len(self.titles) > 1

    def cells(self, row: Row) -> list[str]:
        """The texts of a row."""
        if not self._gains:
            return row.cells()
        return [*row.cells(), "" if row.gain is None else f"{row.gain:+z.{row.metric.digits}f}"]


def plain_table(table: Table) -> list[str]:
    """Lines of aligned text."""
    return align([table.header, *(table.cells(row) for row in table.rows)])


def align(lines: Sequence[Sequence[str]]) -> list[str]:
    """Cells as lines of text: the first column to the left, the others to the right."""
    lines = [[visible(text) for text in line] for line in lines]
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    return ["  ".join(_aligned(line, widths)).rstrip() for line in lines]


def _aligned(line: Sequence[str], widths: Sequence[int]) -> list[str]:
    first, *rest = zip(line, widths, strict=True)
    return [first[0].ljust(first[1]), *(text.rjust(width) for text, width in rest)]


def _plain(text: str) -> str:
    """A text that a terminal shows as it is."""
    return escape(visible(text))


def rich_table(table: Table) -> rich.table.Table:
    """A table for a terminal; gains green, losses red."""
    shown = rich.table.Table()
    for number, title in enumerate(table.header):
        shown.add_column(_plain(title), justify="right" if number else "left")
    for row, following in zip(table.rows, [*table.rows[1:], None], strict=True):
        cells = [_plain(text) for text in table.cells(row)]
        if cells[-1] and row.gain is not None and table.header[-1] == "gain":
            colour = "green" if row.gain > 0 else "red" if row.gain < 0 else "dim"
            cells[-1] = f"[{colour}]{cells[-1]}[/]"
        shown.add_row(
            *cells,
            style="bold" if row.summary else None,
            end_section=row.summary or (following is not None and following.summary),
        )
    return shown
