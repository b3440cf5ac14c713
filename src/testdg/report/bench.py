"""The tables of a bench as text, Markdown and CSV."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from testdg.errors import visible
from testdg.experiments import BenchRow, BenchTable
from testdg.experiments.ablations import Column as Measured
from testdg.experiments.statistics import Gain
from testdg.experiments.summary import Score
from testdg.report.record import record_lines
from testdg.report.safe import csv_text, fenced, markdown
from testdg.report.table import Column, Entry, Table, markdown_table, plain_table

INTERVAL = "95 % interval"
SPREAD = "mean ± standard deviation over runs"
_NEXT_LINE = "\n" + 11 * " "  # under the text of a record's line


def bench_text(tables: Sequence[BenchTable], columns: Sequence[Measured] = ()) -> str:
    """Every table under its record, as aligned text; `columns` come after its own."""
    return "\n\n".join(
        "\n".join([*_shown_record(table), "", *plain_table(replace(means_table(table, columns), corner=""))])
        for table in tables
    )


def bench_markdown(tables: Sequence[BenchTable], columns: Sequence[Measured] = ()) -> str:
    """Every table under a heading and its record, as Markdown."""
    parts = []
    for table in tables:
        lines = markdown_table(replace(means_table(table, columns), corner=""))
        title = markdown(f"{table.benchmark}, {table.protocol}")
        parts.append("\n".join([f"## {title}", "", *fenced(_shown_record(table)), "", *lines]))
    return "\n\n".join(parts) + "\n"


def bench_csv(tables: Sequence[BenchTable], columns: Sequence[Measured] = ()) -> str:
    """A line for each row of each table, with all digits; empty where there is no number."""
    lines = [_csv_line(table, row) | _csv_columns(row, columns) for table in tables for row in table.rows]
    return csv_text([lines[0] if lines else ["benchmark"], *(line.values() for line in lines)])


def _shown_record(table: BenchTable) -> list[str]:
    """The lines of the record, one by one, fit for a terminal."""
    return [visible(line) for text in table_record(table) for line in text.split("\n")]


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
    orders = len(values["order"])
    return lines if orders == 1 else [*lines, f"orders     {orders}, one run each; the first is described above"]


def means_table(table: BenchTable, more: Sequence[Measured] = ()) -> Table:
    """The means of all rows, on the stream and on held-out domains, and how much better they are than Source's."""
    metric, tested = table.metric, all(row.held_out for row in table.rows)
    columns = [Column("runs", digits=0)]
    for title, gain in ((metric.title, "gain"), (f"held out, {metric.unit}", "held-out gain"))[: 2 if tested else 1]:
        columns += [Column.of(metric, title, 1, summary=True)]
        columns += [Column.gains(metric, gain, 1), Column(INTERVAL)] if table.has_source else []
    columns += [Column("seconds"), *(Column(one.title, digits=one.digits) for one in more)]
    note = f"{SPREAD}; the gain over Source is paired domain by domain" if table.has_source else SPREAD
    rows = [(row.name, _entries(table, row, tested, more)) for row in table.rows]
    return Table("Means", f"{metric.title}, {note}.", columns, rows)


def _entries(table: BenchTable, row: BenchRow, tested: bool, more: Sequence[Measured]) -> list[Entry]:
    entries = [Entry(len(row.results))]
    for score in [row.adapted, *([row.held_out] if tested else [])]:
        entries += [*mean_and_gain(table, row, score), *([_interval(score)] if table.has_source else [])]
    return [*entries, Entry(row.seconds or None), *(Entry.of(one.value(row)) for one in more)]


def mean_and_gain(table: BenchTable, row: BenchRow, score: Score | None) -> list[Entry]:
    """Mean and gain; the mean of a row that lacks a stream would not be comparable, while its gain is paired."""
    value = table.shown(score).value if score and table.whole(row) else None
    gain = score.gain if score else None
    gained = Entry(gain.mean, None, gain.low, gain.high) if gain else Entry()
    return [Entry.of(value), *([gained] if table.has_source else [])]


def _interval(score: Score | None) -> Entry:
    gain = score.gain if score else None
    return Entry() if gain is None or gain.low is None else Entry(text=interval_text(gain))


def interval_text(gain: Gain, digits: int = 2) -> str:
    """The interval of a gain; what rounds to zero has no minus."""
    return f"{gain.low:+z.{digits}f} to {gain.high:+z.{digits}f}"


def _csv_line(table: BenchTable, row: BenchRow) -> dict[str, Any]:
    about = {key: table.record[key] for key in ("batch_size", "images_per_domain", "severity", "model")}
    return {
        "benchmark": table.benchmark,
        "protocol": table.protocol,
        **about,
        "name": row.name,
        "method": row.method,
        "runs": len(row.results),
        "metric": row.metric.key,
        **_csv_score("", row.adapted),
        **_csv_score("held_out_", row.held_out),
        "seconds": row.seconds,
    }


def _csv_score(prefix: str, score: Score | None) -> dict[str, Any]:
    value, gain = (score.value, score.gain) if score else (None, None)
    return {
        f"{prefix}mean": value and value.mean,
        f"{prefix}deviation": value and value.deviation,
        f"{prefix}gain": gain and gain.mean,
        f"{prefix}gain_low": gain and gain.low,
        f"{prefix}gain_high": gain and gain.high,
    }


def _csv_columns(row: BenchRow, columns: Sequence[Measured]) -> dict[str, Any]:
    cells: dict[str, Any] = {}
    for column in columns:
        value = column.value(row)
        cells |= {column.key: value and value.mean, f"{column.key}_deviation": value and value.deviation}
    return cells
