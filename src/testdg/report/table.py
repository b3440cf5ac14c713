"""Tables: error per domain of several methods side by side, means last."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.table import Table

from testdg.evaluation import Result

Errors = Mapping[str, float]


@dataclass(frozen=True)
class Row:
    """One line of a table: errors of each column, in percent; None where there is no number yet."""

    name: str
    errors: tuple[float | None, ...]
    summary: bool = False

    @property
    def gain(self) -> float | None:
        """How much lower the last column is than the first."""
        first, last = self.errors[0], self.errors[-1]
        return None if first is None or last is None or len(self.errors) < 2 else first - last

    def cells(self) -> list[str]:
        """Show the numbers with one decimal."""
        shown = ["" if error is None else f"{error:.1f}" for error in self.errors]
        gain = [] if len(self.errors) < 2 else ["" if self.gain is None else f"{self.gain:+.1f}"]
        return [self.name, *shown, *gain]


def make_rows(domains: Sequence[str], held_out: Sequence[str], columns: Sequence[Errors]) -> list[Row]:
    """Rows of every domain and of the means, from the errors that are known so far."""
    rows = [Row(name, tuple(column.get(name) for column in columns)) for name in domains]
    rows.append(_mean("mean", domains, columns))
    if held_out:
        rows += [Row(f"{name} (held out)", tuple(column.get(name) for column in columns)) for name in held_out]
        rows.append(_mean("mean (held out)", held_out, columns))
    return rows


def rows_of(results: Sequence[Result]) -> list[Row]:
    """Rows of complete results."""
    protocol = results[-1].protocol
    columns = [{d.name: d.error for d in [*result.domains, *(result.held_out or [])]} for result in results]
    return make_rows(protocol["domains"], protocol["held_out"], columns)


def _mean(name: str, domains: Sequence[str], columns: Sequence[Errors]) -> Row:
    found = [[column[domain] for domain in domains if domain in column] for column in columns]
    complete = (sum(errors) / len(errors) if len(errors) == len(domains) else None for errors in found)
    return Row(name, tuple(complete), summary=True)


def _header(titles: Sequence[str]) -> list[str]:
    return ["error, %", *titles, *(["gain"] if len(titles) > 1 else [])]


def plain_table(titles: Sequence[str], rows: Sequence[Row]) -> list[str]:
    """Lines of aligned text."""
    lines = [_header(titles), *(row.cells() for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    return ["  ".join(_aligned(line, widths)).rstrip() for line in lines]


def _aligned(line: Sequence[str], widths: Sequence[int]) -> list[str]:
    first, *rest = zip(line, widths, strict=True)
    return [first[0].ljust(first[1]), *(text.rjust(width) for text, width in rest)]


def rich_table(titles: Sequence[str], rows: Sequence[Row], **options: Any) -> Table:
    """A table for a terminal; gains green, losses red."""
    table = Table(**options)
    for number, title in enumerate(_header(titles)):
        table.add_column(title, justify="right" if number else "left")
    for row, following in zip(rows, [*rows[1:], None], strict=True):
        cells = row.cells()
        if row.gain is not None:
            colour = "green" if row.gain > 0 else "red" if row.gain < 0 else "dim"
            cells[-1] = f"[{colour}]{cells[-1]}[/]"
        table.add_row(
            *cells,
            style="bold" if row.summary else None,
            end_section=row.summary or (following is not None and following.summary),
        )
    return table
