"""The tables of a bench, an ablation or a tuning, as text, Markdown, CSV and plain JSON."""

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import msgspec

from testdg.errors import visible
from testdg.report.record import Pairs, pair_lines, reconstruction_note, record_pairs
from testdg.report.safe import csv_text, render
from testdg.report.table import Column, Entry, Table, plain_table
from testdg.studies import BenchRow, BenchTable
from testdg.studies.ablations import EventColumn, PublishedRows
from testdg.studies.summary import Gain, Score
from testdg.studies.tuning import VariantChoice

INTERVAL = "95 % interval"
_DIGITS = 2  # of scores in a tuning
SPREAD = "mean ± standard deviation over runs"


def table_record(table: BenchTable) -> Pairs:
    """The record of a table; seeds, devices and where the settings come from are those of all rows."""
    results = [result for row in table.rows for result in row.results]
    values = {key: list(dict.fromkeys(result.record[key] for result in results)) for key in ("seed", "device", "order")}
    tuning = {row.name: row.results[0].record["tuning"] for row in table.rows if row.method != "source"}
    texts = [f"{name}: {text}" for name, text in tuning.items()] if len(set(tuning.values())) > 1 else tuning.values()
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
    """The means of all rows, on the stream and on held-out domains, and how much better they are than Source's."""
    metric, tested = table.metric, all(row.held_out for row in table.rows)
    columns = [Column("runs", digits=0)]
    for title, gain in ((metric.title, "gain"), (f"held out, {metric.unit}", "held-out gain"))[: 2 if tested else 1]:
        columns += [Column.of(metric, title, 1, summary=True)]
        columns += [Column.gains(metric, gain, 1), Column(INTERVAL)] if table.has_source else []
    columns += [Column("seconds"), *(Column(one.title, digits=one.digits) for one in more)]
    rows = []
    for row in table.rows:
        entries = [Entry(len(row.results))]
        for score in [row.adapted, *([row.held_out] if tested else [])]:
            gained = score and score.gain
            interval = Entry(text=interval_text(gained)) if gained and gained.low is not None else Entry()
            entries += [*mean_and_gain(table, row, score), *([interval] if table.has_source else [])]
        rows.append((row.name, [*entries, Entry(row.seconds or None), *(Entry.of(one.value(row)) for one in more)]))
    gains = "the gain over Source is paired domain by domain" if table.has_source else ""
    ours = reconstruction_note([row.method for row in table.rows], table.record["task"])
    note = "; ".join(filter(None, (f"{metric.title}, {SPREAD}", gains, ours)))
    return Table("Means", f"{note}.", columns, rows)


def mean_and_gain(table: BenchTable, row: BenchRow, score: Score | None) -> list[Entry]:
    """Mean and gain; the mean of a row that lacks a stream would not be comparable, while its gain is paired."""
    value = table.shown(score).value if score and table.whole(row) else None
    gain = score.gain if score else None
    gained = Entry(gain.mean, None, gain.low, gain.high) if gain else Entry()
    return [Entry.of(value), *([gained] if table.has_source else [])]


def interval_text(gain: Gain, digits: int = 2) -> str:
    """The interval of a gain; what rounds to zero has no minus."""
    return f"{gain.low:+z.{digits}f} to {gain.high:+z.{digits}f}"


@dataclass(frozen=True)
class Layout:
    """How the tables of a bench are shown; those of an ablation have more columns and may have published numbers."""

    columns: tuple[EventColumn, ...] = ()
    published: PublishedRows | None = None

    def text(self, tables: Sequence[BenchTable]) -> str:
        """Every table below its record, as aligned text."""
        parts = []
        for table in tables:
            record = [visible(line) for line in pair_lines(table_record(table))]
            parts.append("\n".join([*record, "", *plain_table(self._means(table))]))
        if self.published:
            parts.append("\n".join([self.published.heading, "", *plain_table(_published(self.published))]))
        return "\n\n".join(parts)

    def markdown(self, tables: Sequence[BenchTable]) -> str:
        """Every table below a heading and its record, as Markdown."""
        named = [
            (f"{one.benchmark}, {one.protocol}", pair_lines(table_record(one)), self._means(one)) for one in tables
        ]
        published = (self.published.heading, _published(self.published)) if self.published else None
        return render("bench.md", tables=named, published=published)

    def csv(self, tables: Sequence[BenchTable]) -> str:
        """A line for each row of each table, with all digits; the published numbers stay out of it."""
        lines = [_csv_line(table, row, self.columns) for table in tables for row in table.rows]
        return csv_text([lines[0] if lines else ["benchmark"], *(line.values() for line in lines)])

    def plain(self, tables: Sequence[BenchTable]) -> dict[str, Any]:
        """Plain JSON; the published numbers have a key of their own."""
        measured: dict[str, Any] = {"tables": [table.to_dict() for table in tables]}
        for table, plain in zip(tables, measured["tables"], strict=True):
            for row, values in zip(table.rows, plain["rows"], strict=True):
                values |= {column.key: (value := column.value(row)) and asdict(value) for column in self.columns}
        return {**measured, "published": msgspec.structs.asdict(self.published)} if self.published else measured

    def _means(self, table: BenchTable) -> Table:
        return replace(means_table(table, self.columns), corner="")


def bench_text(tables: Sequence[BenchTable]) -> str:
    """Every table below its record, as aligned text."""
    return Layout().text(tables)


def _published(published: PublishedRows) -> Table:
    (corner, *titles), *rows = published.cells()
    entries = [(name, [Entry(text=text) for text in texts]) for name, *texts in rows]
    return Table("", "", list(map(Column, titles)), entries, corner)


def _csv_line(table: BenchTable, row: BenchRow, columns: Sequence[EventColumn]) -> dict[str, Any]:
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
    """What a tuning found: conditions, a table of configurations for each method, and the choices."""
    parts = ["\n".join(about)]
    for choice in choices:
        table = choice_table(choice)
        parts.append("\n".join([table.title, *plain_table(table), *remarks(choice)]))
    return "\n\n".join([*parts, "\n".join(plain_table(summary_table(choices)))])


def tuning_markdown(choices: Sequence[VariantChoice], about: Sequence[str]) -> str:
    """The same as Markdown, the choices first."""
    sentences = [" ".join(f"{line[:1].upper()}{line[1:]}." for line in remarks(choice)) for choice in choices]
    tables = list(zip(map(choice_table, choices), sentences, strict=True))
    return render("tuning.md", about=about, summary=summary_table(choices), tables=tables)


def tuning_csv(choices: Iterable[VariantChoice]) -> str:
    """A line for each configuration, with all digits."""
    rows: list[list[Any]] = [["row", "settings", "metric", "score", "behind", "published", "chosen", "seconds"]]
    for choice in choices:
        for one in choice.tried:
            about = [choice.variant.key, one.described, choice.metric.key, one.score]
            flags = [one.published, one is choice.best]
            rows.append([*about, choice.gap_to_best(one), *flags, round(one.seconds, 3)])
    return csv_text(rows)


def tuning_plain(choices: Iterable[VariantChoice]) -> list[dict[str, Any]]:
    """The same as plain JSON."""
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
    keys = list(choice.tried[0].settings)
    columns = [*map(Column, keys), Column.of(choice.metric, "", 1)]
    columns += [Column("behind", digits=_DIGITS, signed=True), Column("")]
    rows = []
    for number, one in enumerate(choice.tried, 1):
        values = [Entry(text=part.partition("=")[2]) for part in one.described.split(", ")]
        score = Entry(text="no score") if one.score is None else Entry(one.score)
        tied = one is not choice.best and one in choice.ties
        marks = {"chosen": one is choice.best, "tied": tied, "published": one.published}
        mark = ", ".join(mark for mark, holds in marks.items() if holds)
        rows.append((f"{number}", [*values, score, Entry(choice.gap_to_best(one)), Entry(text=mark)]))
    source = "" if choice.source is None else f", Source {choice.source:.{_DIGITS}f}"
    return Table(f"{choice.variant.title}{source}", "", columns, rows, corner="")


def remarks(choice: VariantChoice) -> list[str]:
    """How sure the choice is: ties, neighbours, edges of what was tried, and configurations without a score."""
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
    metric, rows = choices[0].metric, []
    for choice in choices:
        score = choice.best.score
        gain = None if choice.source is None or score is None else choice.metric.gain(choice.source, score)
        edges = ", ".join(f"{which} {key}" for key, which in choice.edges().items())
        chosen, remark = Entry(text=choice.best.described), f"{edges}: widen" if edges else ""
        numbers = map(Entry, (score, choice.published.score, gain))
        rows.append((choice.variant.title, [chosen, *numbers, Entry(text=remark)]))
    columns = [Column("chosen"), Column.of(metric, "", 1), Column.of(metric, "published", 1)]
    columns += [Column.gains(metric, "gain", 1), Column("remark")]
    return Table("Choices", "", columns, rows, corner="")
