"""The tables of a bench as text, Markdown and CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from typing import Any

from testdg.errors import visible
from testdg.experiments import BenchRow, BenchTable
from testdg.experiments.ablations import Column
from testdg.experiments.statistics import Gain, Spread
from testdg.experiments.summary import Score
from testdg.report.protocol import protocol_lines
from testdg.report.safe import cell, fenced, markdown
from testdg.report.table import align

INTERVAL = "95 % interval"
_NEXT_LINE = "\n" + 11 * " "  # under the text of a protocol's line


def bench_text(tables: Sequence[BenchTable], columns: Sequence[Column] = ()) -> str:
    """Every table under its protocol, as aligned text; `columns` come after its own."""
    return "\n\n".join("\n".join([*_told(table), "", *align(cells(table, columns))]) for table in tables)


def bench_markdown(tables: Sequence[BenchTable], columns: Sequence[Column] = ()) -> str:
    """Every table under a heading and its protocol, as Markdown."""
    parts = []
    for table in tables:
        lines = markdown_table(cells(table, columns))
        parts.append("\n".join([f"## {markdown(_title(table))}", "", *fenced(_told(table)), "", *lines]))
    return "\n\n".join(parts) + "\n"


def markdown_table(lines: Sequence[Sequence[str]]) -> list[str]:
    """Cells as lines of Markdown, titles first."""
    head, *rows = [[markdown(text) for text in line] for line in lines]
    rule = ["---", *["---:"] * (len(head) - 1)]
    return [f"| {' | '.join(line)} |" for line in (head, rule, *rows)]


def bench_csv(tables: Sequence[BenchTable], columns: Sequence[Column] = ()) -> str:
    """A line for each row of each table, with all digits; empty where there is no number."""
    text = io.StringIO()
    lines = [_csv_line(table, row) | _csv_columns(row, columns) for table in tables for row in table.rows]
    writer = csv.DictWriter(text, list(lines[0]) if lines else ["benchmark"], lineterminator="\n")
    writer.writeheader()
    writer.writerows(
        {key: cell(value) if isinstance(value, str) else value for key, value in line.items()} for line in lines
    )
    return text.getvalue()


def _told(table: BenchTable) -> list[str]:
    """The lines of the protocol, one by one, fit for a terminal."""
    return [visible(line) for text in conditions(table) for line in text.split("\n")]


def conditions(table: BenchTable) -> list[str]:
    """The protocol in words; seeds, devices and where the settings come from are those of all rows."""
    results = [result for row in table.rows for result in row.results]
    found = {
        key: list(dict.fromkeys(result.protocol[key] for result in results)) for key in ("seed", "device", "order")
    }
    tuning = {row.name: row.results[0].protocol["tuning"] for row in table.rows if row.method != "source"}
    told = [f"{name}: {text}" for name, text in tuning.items()] if len(set(tuning.values())) > 1 else tuning.values()
    shared = {
        "seed": ", ".join(map(str, sorted(found["seed"]))),
        "device": " and ".join(found["device"]),
        "tuning": _NEXT_LINE.join(dict.fromkeys(told)) or "none",
    }
    lines = protocol_lines({**table.conditions, **shared})
    orders = len(found["order"])
    return lines if orders == 1 else [*lines, f"orders     {orders}, one run each; the first is described above"]


def cells(table: BenchTable, columns: Sequence[Column] = ()) -> list[list[str]]:
    """The texts of a table, titles first."""
    tested = any(row.held_out for row in table.rows)
    metric = table.rows[0].metric
    head = [metric.title, "gain", INTERVAL, *([f"held out, {metric.unit}", "gain", INTERVAL] if tested else [])]
    lines = [["", "runs", *head, "seconds"], *(_cells(row, tested) for row in table.rows)]
    for column in columns:
        texts = (_spread(value, column.digits) if (value := column.value(row)) else "" for row in table.rows)
        lines = [[*line, text] for line, text in zip(lines, [column.title, *texts], strict=True)]
    return lines


def _cells(row: BenchRow, tested: bool) -> list[str]:
    scores = [row.adapted, *([row.held_out] if tested else [])]
    numbers = [text for score in scores for text in _score(score)]
    return [row.name, str(len(row.results)), *numbers, f"{row.seconds:.1f}"]


def _score(score: Score | None) -> list[str]:
    if score is None:
        return ["", "", ""]
    return [_spread(score.value), *(_gain(score.gain) if score.gain else ["", ""])]


def _spread(value: Spread, digits: int = 2) -> str:
    deviation = "" if value.deviation is None else f" ± {value.deviation:.{digits}f}"
    return f"{value.mean:.{digits}f}{deviation}"


def _gain(gain: Gain) -> list[str]:
    interval = "" if gain.low is None else interval_text(gain)
    return [f"{gain.mean:+z.2f}", interval]


def interval_text(gain: Gain, digits: int = 2) -> str:
    """The interval of a gain; what rounds to zero has no minus."""
    return f"{gain.low:+z.{digits}f} to {gain.high:+z.{digits}f}"


def _title(table: BenchTable) -> str:
    return f"{table.benchmark}, {table.protocol}"


def _csv_line(table: BenchTable, row: BenchRow) -> dict[str, Any]:
    about = {key: table.conditions[key] for key in ("batch_size", "images_per_domain", "severity", "model")}
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


def _csv_columns(row: BenchRow, columns: Sequence[Column]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for column in columns:
        value = column.value(row)
        found |= {column.key: value and value.mean, f"{column.key}_deviation": value and value.deviation}
    return found
