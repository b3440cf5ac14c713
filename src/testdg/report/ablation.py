"""The tables of an ablation: those of a bench, and the paper's numbers in a block of their own."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from testdg.experiments import BenchTable
from testdg.experiments.ablations import Ablation, Column, Published
from testdg.report.bench import bench_csv, bench_markdown, bench_text
from testdg.report.safe import markdown
from testdg.report.table import align, markdown_lines


@dataclass(frozen=True)
class Layout:
    """How the tables of a bench are shown; those of an ablation have more columns and may have published numbers."""

    ablation: Ablation | None = None

    @property
    def _columns(self) -> tuple[Column, ...]:
        return self.ablation.columns if self.ablation else ()

    @property
    def _published(self) -> Published | None:
        return self.ablation.published if self.ablation else None

    def text(self, tables: Sequence[BenchTable]) -> str:
        """Aligned text."""
        shown = bench_text(tables, self._columns)
        if not self._published:
            return shown
        return "\n".join([shown, "", self._published.heading, "", *align(self._published.cells())])

    def markdown(self, tables: Sequence[BenchTable]) -> str:
        """Markdown."""
        shown = bench_markdown(tables, self._columns)
        if not self._published:
            return shown
        cells = [[markdown(text) for text in line] for line in self._published.cells()]
        return "\n".join([shown, f"## {self._published.heading}", "", *markdown_lines(cells), ""])

    def csv(self, tables: Sequence[BenchTable]) -> str:
        """CSV of what was measured; the published numbers stay out of it."""
        return bench_csv(tables, self._columns)

    def plain(self, tables: Sequence[BenchTable]) -> dict[str, Any]:
        """Plain JSON; the published numbers have a key of their own."""
        found: dict[str, Any] = {"tables": [self._plain_table(table) for table in tables]}
        return {**found, "published": self._published._asdict()} if self._published else found

    def _plain_table(self, table: BenchTable) -> dict[str, Any]:
        plain = table.to_dict()
        for row, values in zip(table.rows, plain["rows"], strict=True):
            for column in self._columns:
                value = column.value(row)
                values[column.key] = value and asdict(value)
        return plain
