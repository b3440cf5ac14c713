"""The tables of a bench, an ablation or a tuning, as text, Markdown, CSV and plain JSON."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import msgspec

from testdg.errors import visible
from testdg.report.record import Pairs, pair_lines, reconstruction_note, record_pairs
from testdg.report.safe import csv_text, render
from testdg.report.table import Cell, Field, Table, TableColumn, plain_table, tabulate
from testdg.studies import BenchRow, BenchTable
from testdg.studies.ablations import EventColumn, PublishedRows
from testdg.studies.summary import Gain, ScoreAndGain
from testdg.studies.tuning import Configuration, VariantChoice

INTERVAL = "95 % interval"
_DIGITS = 2  # of scores in a tuning
SPREAD = "mean ± standard deviation over runs"


def table_record(table: BenchTable) -> Pairs:
    """The record of a table, with the seeds, devices and origins of settings of all rows."""
    results = [result for row in table.rows for result in row.results]
    values = {key: list(dict.fromkeys(result.record[key] for result in results)) for key in ("seed", "device", "order")}
    tuning = {row.name: row.results[0].record["tuning"] for row in table.rows if row.method != "source"}
    texts = list(tuning.values())
    if len(set(texts)) > 1:
        texts = [f"{name}: {text}" for name, text in tuning.items()]
    shared = {
        "seed": ", ".join(map(str, sorted(values["seed"]))),
        "device": " and ".join(values["device"]),
        "tuning": "\n".join(dict.fromkeys(texts)) or "none",
    }
    pairs = record_pairs({**table.record, **shared})
    if (orders := len(values["order"])) > 1:
        pairs.append(("orders", f"{orders}, one run each; the first is described above"))
    return pairs


def means_table(table: BenchTable, more: Sequence[EventColumn] = ()) -> Table:
    """The means of all rows, on the stream and on held-out domains, and their gains over Source."""
    metric = table.metric
    fields: list[Field[BenchRow]] = [(TableColumn("runs", digits=0), lambda row: Cell(len(row.results)))]
    fields += _score_fields(table, metric.title, "gain", lambda row: row.adapted)
    if all(row.held_out for row in table.rows):
        fields += _score_fields(table, f"held out, {metric.unit}", "held-out gain", lambda row: row.held_out)
    fields.append((TableColumn("seconds"), lambda row: Cell(row.seconds or None)))
    fields += [(TableColumn(one.title, digits=one.digits), partial(_measured_cell, one)) for one in more]
    gains = "the gain over Source is paired domain by domain" if table.has_source else ""
    ours = reconstruction_note([row.method for row in table.rows], table.record["task"])
    note = "; ".join(filter(None, (f"{metric.title}, {SPREAD}", gains, ours)))
    return tabulate("Means", f"{note}.", fields, [(row.name, row) for row in table.rows])


def _score_fields(
    table: BenchTable, title: str, gain: str, score: Callable[[BenchRow], ScoreAndGain | None]
) -> list[Field[BenchRow]]:
    """A mean; if the table has Source, also the gain over it, and the interval of the gain."""
    mean = TableColumn.of(table.metric, title, 1, summary=True)
    fields: list[Field[BenchRow]] = [(mean, lambda row: mean_cell(table, row, score(row)))]
    if table.has_source:
        fields.append((TableColumn.gains(table.metric, gain, 1), lambda row: gain_cell(score(row))))
        fields.append((TableColumn(INTERVAL), lambda row: _interval_cell(score(row))))
    return fields


def mean_cell(table: BenchTable, row: BenchRow, score: ScoreAndGain | None) -> Cell:
    """The mean over runs; empty for a row without runs on some stream, which could not be compared with others."""
    return Cell.of(table.shown(score).value) if score and table.whole(row) else Cell()


def gain_cell(score: ScoreAndGain | None) -> Cell:
    """The gain over Source. It is paired by stream, so a row without runs on some stream has one, too."""
    gain = score.gain if score else None
    return Cell(gain.mean, None, gain.low, gain.high) if gain else Cell()


def _interval_cell(score: ScoreAndGain | None) -> Cell:
    gain = score.gain if score else None
    return Cell(text=interval_text(gain)) if gain and gain.low is not None else Cell()


def interval_text(gain: Gain, digits: int = 2) -> str:
    """The interval of a gain; zero is never written with a minus."""
    return f"{gain.low:+z.{digits}f} to {gain.high:+z.{digits}f}"


def _measured_cell(column: EventColumn, row: BenchRow) -> Cell:
    return Cell.of(column.value(row))


class Section(NamedTuple):
    """A table in a document, with lines above it and a remark below; empty parts are omitted."""

    heading: str
    lines: Sequence[str]
    table: Table
    remark: str = ""


@dataclass(frozen=True)
class Layout:
    """How the tables of a bench are shown; those of an ablation have more columns and may have published numbers."""

    columns: tuple[EventColumn, ...] = ()
    published: PublishedRows | None = None

    def text(self, tables: Sequence[BenchTable]) -> str:
        """All tables as aligned text, each after its record."""
        parts = []
        for one in self.sections(tables):
            above = map(visible, one.lines or [one.heading])
            parts.append("\n".join([*above, "", *plain_table(one.table)]))
        return "\n\n".join(parts)

    def markdown(self, tables: Sequence[BenchTable]) -> str:
        """All tables as Markdown, each after a heading and its record."""
        return render("tables.md", sections=self.sections(tables))

    def sections(self, tables: Sequence[BenchTable]) -> list[Section]:
        """A section for the means of each table, with its record, then one for the published numbers."""
        found = []
        for table in tables:
            means = replace(means_table(table, self.columns), corner="")
            found.append(Section(f"{table.benchmark}, {table.protocol}", pair_lines(table_record(table)), means))
        if self.published:
            found.append(Section(self.published.heading, [], _published_table(self.published)))
        return found

    def csv(self, tables: Sequence[BenchTable]) -> str:
        """A line for each row of each table, with all digits, without the published numbers."""
        lines = [_csv_line(table, row, self.columns) for table in tables for row in table.rows]
        return csv_text([lines[0] if lines else ["benchmark"], *(line.values() for line in lines)])

    def plain(self, tables: Sequence[BenchTable]) -> dict[str, Any]:
        """Values for JSON; the published numbers have a separate key."""
        measured: dict[str, Any] = {"tables": [table.to_dict() for table in tables]}
        for table, plain in zip(tables, measured["tables"], strict=True):
            for row, values in zip(table.rows, plain["rows"], strict=True):
                values |= {column.key: (value := column.value(row)) and asdict(value) for column in self.columns}
        return {**measured, "published": msgspec.structs.asdict(self.published)} if self.published else measured


def bench_text(tables: Sequence[BenchTable]) -> str:
    """All tables as aligned text, each after its record."""
    return Layout().text(tables)


def _published_table(published: PublishedRows) -> Table:
    (corner, *titles), *rows = published.cells()
    cells = [(name, [Cell(text=text) for text in texts]) for name, *texts in rows]
    return Table("", "", list(map(TableColumn, titles)), cells, corner)


def _csv_line(table: BenchTable, row: BenchRow, columns: Sequence[EventColumn]) -> dict[str, object]:
    """The values of a row by title; empty where there is no number."""
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


# Tunings


def tuning_text(choices: Sequence[VariantChoice], about: Sequence[str]) -> str:
    """The results of a tuning: conditions, a table of configurations for each method, and the choices."""
    parts = ["\n".join(about)]
    for choice in choices:
        table = choice_table(choice)
        parts.append("\n".join([table.title, *plain_table(table), *remarks(choice)]))
    return "\n\n".join([*parts, "\n".join(plain_table(summary_table(choices)))])


def tuning_markdown(choices: Sequence[VariantChoice], about: Sequence[str]) -> str:
    """The results of a tuning as Markdown, the choices first."""
    sections = [Section("", about, summary_table(choices))]
    for choice in choices:
        table = choice_table(choice)
        remark = " ".join(f"{line[:1].upper()}{line[1:]}." for line in remarks(choice))
        sections.append(Section(table.title, [], table, remark))
    return render("tables.md", sections=sections)


def tuning_csv(choices: Iterable[VariantChoice]) -> str:
    """A line for each configuration, with all digits."""
    rows: list[list[object]] = [["row", "settings", "metric", "score", "behind", "published", "chosen", "seconds"]]
    for choice in choices:
        for one in choice.tried:
            about = [choice.variant.key, one.described, choice.metric.key, one.score]
            flags = [one.published, one is choice.best]
            rows.append([*about, choice.gap_to_best(one), *flags, round(one.seconds, 3)])
    return csv_text(rows)


def tuning_plain(choices: Iterable[VariantChoice]) -> list[dict[str, Any]]:
    """The results of a tuning as values for JSON."""
    return [
        {
            "row": choice.variant.key,
            **msgspec.structs.asdict(choice.chosen()),
            "source": choice.source,
            "ties": [one.settings for one in choice.ties],
            "tried": [
                {"settings": one.settings, "score": one.score, "published": one.published} for one in choice.tried
            ],
        }
        for choice in choices
    ]


def choice_table(choice: VariantChoice) -> Table:
    """A row for each configuration of a method, in the order of its search."""

    def setting(place: int, one: Configuration) -> Cell:
        return Cell(text=one.described.split(", ")[place].partition("=")[2])

    def mark(one: Configuration) -> Cell:
        tied = one is not choice.best and one in choice.ties
        marks = {"chosen": one is choice.best, "tied": tied, "published": one.published}
        return Cell(text=", ".join(mark for mark, holds in marks.items() if holds))

    keys = choice.tried[0].settings
    fields: list[Field[Configuration]] = [(TableColumn(key), partial(setting, place)) for place, key in enumerate(keys)]
    fields += [
        (TableColumn.of(choice.metric, "", 1), lambda one: Cell(one.score, text="no score")),
        (TableColumn("behind", digits=_DIGITS, signed=True), lambda one: Cell(choice.gap_to_best(one))),
        (TableColumn(""), mark),
    ]
    source = "" if choice.source is None else f", Source {choice.source:.{_DIGITS}f}"
    rows = [(str(number), one) for number, one in enumerate(choice.tried, 1)]
    return tabulate(f"{choice.variant.title}{source}", "", fields, rows, corner="")


def remarks(choice: VariantChoice) -> list[str]:
    """How reliable the choice is: ties, neighbours, values at an edge of the search, missing scores."""
    lines = [f"chosen: {choice.best.described}"]
    if ties := len(choice.ties) - 1:
        lines.append(f"tied with {ties} more: of ties, the published settings are taken, then the smallest rate")
    near = [gap for one in choice.neighbours() if (gap := choice.gap_to_best(one)) is not None]
    if near:
        lines.append(f"neighbours are {min(near):+.{_DIGITS}f} to {max(near):+.{_DIGITS}f} behind")
    if choice.widened:
        lines.append(f"search widened {'once' if choice.widened == 1 else f'{choice.widened} times'}")
    for key, which in choice.edges().items():
        lines.append(f"{key} is the {which} that was tried: widen its search")
    if missing := len(choice.tried) - len(choice.scored):
        lines.append(f"{missing} configurations have no score")
    return lines


def summary_table(choices: Sequence[VariantChoice]) -> Table:
    """A row for each method: what was chosen, next to the published settings and Source."""

    def gain(one: VariantChoice) -> Cell:
        score = one.best.score
        return Cell(None if one.source is None or score is None else one.metric.gain(one.source, score))

    def remark(one: VariantChoice) -> Cell:
        edges = ", ".join(f"{which} {key}" for key, which in one.edges().items())
        return Cell(text=f"{edges}: widen" if edges else "")

    metric = choices[0].metric
    fields: list[Field[VariantChoice]] = [
        (TableColumn("chosen"), lambda one: Cell(text=one.best.described)),
        (TableColumn.of(metric, "", 1), lambda one: Cell(one.best.score)),
        (TableColumn.of(metric, "published", 1), lambda one: Cell(one.published.score)),
        (TableColumn.gains(metric, "gain", 1), gain),
        (TableColumn("remark"), remark),
    ]
    return tabulate("Choices", "", fields, [(one.variant.title, one) for one in choices], corner="")
