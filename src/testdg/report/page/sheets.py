"""Which tables a group has: methods as rows, domains as columns, the mean last."""

import statistics
from collections.abc import Callable, Sequence

from testdg.report.bench import SPREAD, mean_and_gain, means_table
from testdg.report.page.groups import Group
from testdg.report.published import Published, published
from testdg.report.table import Column, Entry, Table
from testdg.runs import DomainResult, Result
from testdg.runs.result import means
from testdg.runs.scores import Metric, other_metrics
from testdg.spec import SOURCE
from testdg.studies import BenchRow, BenchTable
from testdg.studies.statistics import spread
from testdg.studies.summary import Score, run_names

_MOST_COLUMNS = 20
Visits = Callable[[Result], Sequence[DomainResult]]
Place = tuple[Column, list[int]]


def group_sheets(group: Group) -> list[Table]:
    """The tables of a group, without those that would be empty; the second has the domains."""
    table = group.table
    if len(table.streams) > 1:
        details = [_stream_sheet(table)]
    else:
        details = [_domain_sheet(table, "Domains", lambda result: result.domains, lambda row: row.adapted)]
        if all(row.held_out for row in table.rows):
            held_out = _domain_sheet(table, "Held-out domains", lambda r: r.held_out or [], lambda row: row.held_out)
            details.append(held_out)
    sheets = [means_table(table), *details, _score_sheet(table), _class_sheet(table)]
    return [sheet for sheet in sheets if sheet.columns]


def _domain_sheet(table: BenchTable, title: str, visits: Visits, score: Callable[[BenchRow], Score | None]) -> Table:
    """The paper's table: a column for each domain (of each round, where there is room), then mean and gain."""
    metric = table.metric
    places = _places(visits(table.streams[0]), metric)
    rows = []
    for row in table.rows:
        found = [[visit.known(metric.key) for visit in visits(result)] for result in row.results]
        mine = [[statistics.fmean(one[n] for n in numbers) for one in found] for _, numbers in places]
        rows.append((row.name, [*map(_entry, mine), *mean_and_gain(table, row, score(row))]))
    return Table(title, f"{metric.title}, {SPREAD}.", [*(column for column, _ in places), *_last(table)], rows)


def _places(visits: Sequence[DomainResult], metric: Metric) -> list[Place]:
    """The columns of some visits, each with the numbers of the visits that it is the mean of."""
    rounds = sorted({visit.round for visit in visits})
    names = list(dict.fromkeys(visit.name for visit in visits))
    if len(rounds) == 1:
        return [(Column.of(metric, _plain(name)), _numbers(visits, name=name)) for name in names]
    if len(rounds) * (len(names) + 1) > _MOST_COLUMNS:
        return [(Column.of(metric, f"round {number}"), _numbers(visits, round=number)) for number in rounds]
    places: list[Place] = []
    for number in rounds:
        over = f"round {number}"
        places += [(Column.of(metric, _plain(n), over=over), _numbers(visits, name=n, round=number)) for n in names]
        places.append((Column.of(metric, "mean", over=over, summary=True), _numbers(visits, round=number)))
    return places


def _numbers(visits: Sequence[DomainResult], **fields: object) -> list[int]:
    return [n for n, visit in enumerate(visits) if all(getattr(visit, k) == v for k, v in fields.items())]


def _plain(name: str) -> str:
    return name.replace("_", " ")


def _last(table: BenchTable) -> list[Column]:
    gain = [Column.gains(table.metric)] if table.has_source else []
    return [Column.of(table.metric, "mean", summary=True), *gain]


def _entry(values: Sequence[float | None]) -> Entry:
    """The mean over runs and its deviation; nothing where a run has no number."""
    known = [value for value in values if value is not None]
    return Entry.of(spread(known)) if known and len(known) == len(values) else Entry()


def _stream_sheet(table: BenchTable) -> Table:
    """A column for each order of the domains, or for each domain that is left out, of which only that one counts."""
    metric, streams = table.metric, table.streams
    columns = [Column.of(metric, _plain(name)) for name in run_names([[result] for result in streams])]
    rows = []
    for row in table.rows:
        found = [[table.mean(r) for r in row.results if r.stream == stream.stream] for stream in streams]
        rows.append((row.name, [*map(_entry, found), *mean_and_gain(table, row, table.score(row))]))
    title = "Domains that are left out" if table.leaves_out else "Orders"
    return Table(title, f"{metric.title}, {SPREAD}.", [*columns, *_last(table)], rows)


def _score_sheet(table: BenchTable) -> Table:
    """Means of the scores besides the main one; no columns where no result has them."""
    found = [(row.name, [means(result.domains) for result in row.results]) for row in table.rows]
    shown = [m for m in other_metrics() if any(one[m.key] is not None for _, scores in found for one in scores)]
    rows = [(name, [_entry([one[m.key] for one in scores]) for m in shown]) for name, scores in found]
    note = "; ".join(f"{metric.name}: {metric.note}" for metric in shown)
    return Table("Other scores", f"{note[:1].upper()}{note[1:]}.", list(map(Column.of, shown)), rows)


def _class_sheet(table: BenchTable) -> Table:
    """The IoU of each class, a mean over the visits that were learnt from; no columns for classification."""
    classes = table.streams[0].classes
    found = [(row.name, [result.class_means() for result in row.results]) for row in table.rows]
    rows = [(name, [_entry([one.get(c) for one in scores]) for c in classes]) for name, scores in found]
    note = f"Intersection over union in percent, a mean over domains; {SPREAD}."
    return Table("Classes", note, [Column(name, True) for name in classes], rows)


def published_sheets(group: Group) -> list[Table]:
    """What papers published for the benchmark and the protocol of a group."""
    return [_published(table) for table in published(group.table.benchmark, group.table.protocol)]


def _published(table: Published) -> Table:
    """`fog (2)` stands below `round 2`."""
    titles = [_plain(name).removesuffix(")").partition(" (") for name in (*table.columns, "mean")]
    columns = [
        Column.of(table.metric, title, over=f"round {number}" if number else "", summary=title == "mean")
        for title, _, number in titles
    ]
    rows = [(name, [Entry(value) for value in values]) for name, values in table.rows.items()]
    remark = f" Remark: {table.remark}." if table.remark else ""
    note = f"{table.metric.title}, from {table.source}. Protocol: {table.conditions}.{remark}"
    return Table("Published numbers", note, columns, rows)


def source_gains(group: Group, sheet: Table) -> dict[str, list[float | None]]:
    """How much better each row of a group's sheet is than Source, column by column; empty where Source is missing."""
    places = [place for place, row in enumerate(group.table.rows) if row.method == SOURCE]
    if not places:
        return {}
    _, source = sheet.rows[places[0]]
    return {
        name: [_better(*each) for each in zip(source, entries, sheet.columns, strict=True)]
        for place, (name, entries) in enumerate(sheet.rows)
        if place not in places
    }


def _better(source: Entry, entry: Entry, column: Column) -> float | None:
    if source.value is None or entry.value is None or column.signed:
        return None
    return entry.value - source.value if column.higher else source.value - entry.value
