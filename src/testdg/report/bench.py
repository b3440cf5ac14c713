"""The tables of a bench, or of an ablation, as text, Markdown, CSV and plain JSON."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from testdg.errors import visible
from testdg.report.record import reconstruction_note, record_lines
from testdg.report.safe import csv_text, fenced, markdown
from testdg.report.table import Column, Entry, Table, align, markdown_lines, markdown_table, plain_table
from testdg.studies import BenchRow, BenchTable
from testdg.studies.ablations import Column as Measured
from testdg.studies.ablations import Published
from testdg.studies.statistics import Gain
from testdg.studies.summary import Score

INTERVAL = "95 % interval"
SPREAD = "mean ± standard deviation over runs"
_NEXT_LINE = "\n" + 11 * " "  # under the text of a record's line


def bench_text(tables: Sequence[BenchTable], columns: Sequence[Measured] = ()) -> str:
    """Every table under its record, as aligned text; `columns` come after its own."""
    parts = []
    for table in tables:
        lines = plain_table(replace(means_table(table, columns), corner=""))
        parts.append("\n".join([*map(visible, table_record(table)), "", *lines]))
    return "\n\n".join(parts)


def bench_markdown(tables: Sequence[BenchTable], columns: Sequence[Measured] = ()) -> str:
    """Every table under a heading and its record, as Markdown."""
    parts = []
    for table in tables:
        lines = markdown_table(replace(means_table(table, columns), corner=""))
        title = markdown(f"{table.benchmark}, {table.protocol}")
        parts.append("\n".join([f"## {title}", "", *fenced(table_record(table)), "", *lines]))
    return "\n\n".join(parts) + "\n"


def bench_csv(tables: Sequence[BenchTable], columns: Sequence[Measured] = ()) -> str:
    """A line for each row of each table, with all digits; empty where there is no number."""
    lines = [_csv_line(table, row, columns) for table in tables for row in table.rows]
    return csv_text([lines[0] if lines else ["benchmark"], *(line.values() for line in lines)])


def table_record(table: BenchTable) -> list[str]:
    """The record in words; seeds, devices and where the settings come from are those of all rows."""
    results = [result for row in table.rows for result in row.results]
    values = {key: list(dict.fromkeys(result.record[key] for result in results)) for key in ("seed", "device", "order")}
    tuning = {row.name: row.results[0].record["tuning"] for row in table.rows if row.method != "source"}
    texts = [f"{name}: {text}" for name, text in tuning.items()] if len(set(tuning.values())) > 1 else tuning.values()
    shared = {
        "seed": ", ".join(map(str, sorted(values["seed"]))),
        "device": " and ".join(values["device"]),
        "tuning": _NEXT_LINE.join(dict.fromkeys(texts)) or "none",
    }
    lines = record_lines({**table.record, **shared})
    if (orders := len(values["order"])) > 1:
        lines.append(f"orders     {orders}, one run each; the first is described above")
    return "\n".join(lines).split("\n")


def means_table(table: BenchTable, more: Sequence[Measured] = ()) -> Table:
    """The means of all rows, on the stream and on held-out domains, and how much better they are than Source's."""
    metric, tested = table.metric, all(row.held_out for row in table.rows)
    columns = [Column("runs", digits=0)]
    for title, gain in ((metric.title, "gain"), (f"held out, {metric.unit}", "held-out gain"))[: 2 if tested else 1]:
        columns += [Column.of(metric, title, 1, summary=True)]
        columns += [Column.gains(metric, gain, 1), Column(INTERVAL)] if table.has_source else []
    columns += [Column("seconds"), *(Column(one.title, digits=one.digits) for one in more)]
    gains = "the gain over Source is paired domain by domain" if table.has_source else ""
    ours = reconstruction_note([row.method for row in table.rows], table.record["task"])
    note = "; ".join(filter(None, (f"{metric.title}, {SPREAD}", gains, ours)))
    rows = [(row.name, _entries(table, row, tested, more)) for row in table.rows]
    return Table("Means", f"{note}.", columns, rows)


def _entries(table: BenchTable, row: BenchRow, tested: bool, more: Sequence[Measured]) -> list[Entry]:
    entries = [Entry(len(row.results))]
    for score in [row.adapted, *([row.held_out] if tested else [])]:
        gain = score and score.gain
        interval = Entry(text=interval_text(gain)) if gain and gain.low is not None else Entry()
        entries += [*mean_and_gain(table, row, score), *([interval] if table.has_source else [])]
    return [*entries, Entry(row.seconds or None), *(Entry.of(one.value(row)) for one in more)]


def mean_and_gain(table: BenchTable, row: BenchRow, score: Score | None) -> list[Entry]:
    """Mean and gain; the mean of a row that lacks a stream would not be comparable, while its gain is paired."""
    value = table.shown(score).value if score and table.whole(row) else None
    gain = score.gain if score else None
    gained = Entry(gain.mean, None, gain.low, gain.high) if gain else Entry()
    return [Entry.of(value), *([gained] if table.has_source else [])]


def interval_text(gain: Gain, digits: int = 2) -> str:
    """The interval of a gain; what rounds to zero has no minus."""
    return f"{gain.low:+z.{digits}f} to {gain.high:+z.{digits}f}"


def _csv_line(table: BenchTable, row: BenchRow, columns: Sequence[Measured]) -> dict[str, Any]:
    line = {
        "benchmark": table.benchmark,
        "protocol": table.protocol,
        **{key: table.record[key] for key in ("batch_size", "images_per_domain", "severity", "model")},
        "name": row.name,
        "method": row.method,
        "runs": len(row.results),
        "metric": row.metric.key,
    }
    for prefix, score in (("", row.adapted), ("held_out_", row.held_out)):
        value, gain = (score.value, score.gain) if score else (None, None)
        line |= {f"{prefix}mean": value and value.mean, f"{prefix}deviation": value and value.deviation}
        bounds = {"gain": gain and gain.mean, "gain_low": gain and gain.low, "gain_high": gain and gain.high}
        line |= {prefix + key: number for key, number in bounds.items()}
    line["seconds"] = row.seconds
    for column in columns:
        value = column.value(row)
        line |= {column.key: value and value.mean, f"{column.key}_deviation": value and value.deviation}
    return line


@dataclass(frozen=True)
class Layout:
    """How the tables of a bench are shown; those of an ablation have more columns and may have published numbers."""

    columns: tuple[Measured, ...] = ()
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
        measured: dict[str, Any] = {"tables": [table.to_dict() for table in tables]}
        for table, plain in zip(tables, measured["tables"], strict=True):
            for row, values in zip(table.rows, plain["rows"], strict=True):
                values |= {column.key: (value := column.value(row)) and asdict(value) for column in self.columns}
        return {**measured, "published": self.published._asdict()} if self.published else measured
