"""The tables of an ablation: those of a bench, and the paper's numbers in a block of their own."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from testdg.experiments import BenchTable
from testdg.experiments.ablations import Column, Published
from testdg.report.bench import bench_csv, bench_markdown, bench_text
from testdg.report.safe import markdown
from testdg.report.table import align, markdown_lines


@dataclass(frozen=True)
class Layout:
    """How the tables of a bench are shown; those of an ablation have more columns and may have published numbers."""

    columns: tuple[Column, ...] = ()
    published: Published | None = None

    def text(self, tables: Sequence[BenchTable]) -> str:
        """Aligned text."""
        shown = bench_text(tables, self.columns)
        if not self.published:
            return shown
        return "\n".join([shown, "", self.published.heading, "", *align(self.published.cells())])

    def markdown(self, tables: Sequence[BenchTable]) -> str:
        """Markdown."""
        shown = bench_markdown(tables, self.columns)
        if not self.published:
            return shown
        cells = [[markdown(text) for text in line] for line in self.published.cells()]
        return "\n".join([shown, f"## {self.published.heading}", "", *markdown_lines(cells), ""])

    def csv(self, tables: Sequence[BenchTable]) -> str:
        """CSV of what was measured; the published numbers stay out of it."""
        return bench_csv(tables, self.columns)

    def plain(self, tables: Sequence[BenchTable]) -> dict[str, Any]:
        """Plain JSON; the published numbers have a key of their own."""
        measured: dict[str, Any] = {"tables": [self._plain_table(table) for table in tables]}
        return {**measured, "published": self.published._asdict()} if self.published else measured

    def _plain_table(self, table: BenchTable) -> dict[str, Any]:
        plain = table.to_dict()
        for row, values in zip(table.rows, plain["rows"], strict=True):
            for column in self.columns:
                value = column.value(row)
                values[column.key] = value and asdict(value)
        return plain
