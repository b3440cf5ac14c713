"""The tables of results. One long table has a line for each number of each visit; all tables are pivots of it.

The tables of `testdg run` have a column for each method; those of pages and papers have a row for each.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from testdg.report.bench import SPREAD, gain_cell, mean_cell, means_table
from testdg.report.published import Published
from testdg.report.table import Cell, Table, TableColumn
from testdg.runs import Result, check_comparable
from testdg.runs.compare import BY_ORDER, by_key
from testdg.runs.protocol import Visit
from testdg.runs.result import mean_of
from testdg.runs.scores import Classification, Metric, Segmentation, other_metrics
from testdg.studies import BenchTable
from testdg.studies.summary import BenchRow, ScoreAndGain, Spread, leaves_one_out, run_names, spread

_IOU = "IoU of "
_HELD_OUT = " (held out)"
_PARTS = ((False, ""), (True, _HELD_OUT))
_MOST_ROUNDS = 10  # columns of the table of rounds
_MOST_COLUMNS = 20
Key = tuple[object, ...]
Values = Sequence[float | None]
Pivot = dict[Key, list[list[float | None]]]
"""The values of each run, by the fields of rows and columns."""


class Number(NamedTuple):
    """A line of the long table: one number of one visit of one run."""

    row: int
    """Number of the row that the run belongs to."""
    name: str
    """Name of this row."""
    stream: int
    """Number of the stream; streams differ in the order of the domains, or in the domains left out."""
    run: int
    """Number of the run within its row and stream."""
    seed: int
    domain: str
    round: int
    severity: int | None
    held_out: bool
    metric: str
    value: float | None
    """None where the metric is not defined, such as the IoU of a class that does not occur in the visit."""


def long_table(rows: Iterable[tuple[str, Sequence[Result]]], stream: int = 0) -> list[Number]:
    """Every number of the runs of some named rows, in the order of the runs and their visits."""
    found = []
    for row, (name, results) in enumerate(rows):
        for run, result in enumerate(results):
            about = (row, name, stream, run, int(result.record.get("seed", 0)))
            for number, visit in enumerate([*result.domains, *(result.held_out or [])]):
                where = (*about, visit.name, visit.round, visit.severity, number >= len(result.domains))
                values = {metric.key: visit.scores.get(metric.key) for metric in (result.metric, *other_metrics())}
                overlaps = visit.class_iou or [None] * len(result.classes)
                values |= {_IOU + name: value for name, value in zip(result.classes, overlaps, strict=True)}
                found += [Number(*where, key, value) for key, value in values.items()]
    return found


def pivot(numbers: Iterable[Number], rows: Sequence[str], columns: Sequence[str]) -> Pivot:
    """The values of each run, by the fields of rows and columns."""
    found: dict[Key, dict[tuple[int, int], list[float | None]]] = {}
    for number in numbers:
        key = tuple(getattr(number, field) for field in (*rows, *columns))
        found.setdefault(key, {}).setdefault((number.stream, number.run), []).append(number.value)
    return {key: list(runs.values()) for key, runs in found.items()}


class Measure(NamedTuple):
    """One number for every row of results: a line in the tables of `testdg run`, a column in those of a page."""

    title: str
    metric: Metric
    runs: Mapping[object, Sequence[Values]]
    """The values of the runs of each row."""
    mean: Callable[[Values], float | None] = mean_of
    """Reduces the values of a run to one number."""
    over: str = ""
    summary: bool = False
    compared: bool = True

    def spread(self, row: object) -> Spread | None:
        """Mean and deviation over the runs of a row; None where a run has no number."""
        means = [self.mean(values) for values in self.runs.get(row, [])]
        known = [value for value in means if value is not None]
        return spread(known) if known and len(known) == len(means) else None

    def gain(self, reference: object, row: object) -> float | None:
        """Gain of a row over another; None if they have values for different numbers of visits."""
        one, two = self.spread(reference), self.spread(row)
        counts = [sum(value is not None for values in self.runs[n] for value in values) for n in (reference, row)]
        if one is None or two is None or counts[0] != counts[1] or not self.compared:
            return None
        return self.metric.gain(one.mean, two.mean)


def measure(
    numbers: Iterable[Number],
    title: str,
    metric: Metric,
    *,
    key: str = "",
    by: str = "row",
    mean: Callable[[Values], float | None] = mean_of,
    **fields: object,
) -> Measure:
    """Select the numbers of a metric (or of `key`) whose `fields` have these values, and group them."""
    fields["metric"] = key or metric.key
    chosen = [one for one in numbers if all(getattr(one, field) == value for field, value in fields.items())]
    return Measure(title, metric, {row: runs for (row,), runs in pivot(chosen, (by,), ()).items()}, mean)


def _other_measures(numbers: Sequence[Number], suffix: str = "") -> list[Measure]:
    """The other metrics, without those that no run has."""
    every = [measure(numbers, metric.title + suffix, metric) for metric in other_metrics()]
    return [one for one in every if any(one.mean(values) is not None for runs in one.runs.values() for values in runs)]


def _class_measures(numbers: Sequence[Number], classes: Iterable[str]) -> list[Measure]:
    """The IoU of each class, a mean over the visits that have it."""
    return [measure(numbers, name, Segmentation.metric, key=_IOU + name, mean=known_mean) for name in classes]


def known_mean(values: Values) -> float | None:
    """The mean of the values that are not None; None if there are none."""
    return mean_of([value for value in values if value is not None])


# A column for each method


def method_columns(
    corner: str, titles: Sequence[str], lines: Sequence[Measure], rows: Sequence[object] = (), gain: bool = True
) -> Table:
    """A table with a column for each title; `gain` adds a column with the gain of the last over the first."""
    rows = rows or range(len(titles))
    columns = list(map(TableColumn, titles))
    if gain := gain and len(titles) > 1:
        columns.append(TableColumn("gain", signed=True))
    found = []
    for line in lines:
        means = [Cell.of(line.spread(row)).value for row in rows]
        means += [line.gain(rows[0], rows[-1])] if gain else []
        found.append((line.title, [Cell(value, digits=line.metric.digits) for value in means]))
    return Table("", "", columns, found, corner, [line.title for line in lines if line.summary])


def visit_table(
    titles: Sequence[str],
    visits: Sequence[Visit],
    columns: Sequence[Mapping[int, float | None]],
    metric: Metric = Classification.metric,
) -> Table:
    """A row per domain or per round. `columns` have scores by number of the visit; a run in progress has only some.

    A row shows the mean of its visits so far. There is no gain if two columns have different numbers of visits, and
    no mean over all visits until the run is complete.
    """
    several, lines = max(visit.round for visit in visits) > 1, []
    for learn, suffix in ((True, ""), (False, _HELD_OUT)):
        mine = [number for number, visit in enumerate(visits) if visit.learn == learn]
        names = [visits[n].name + suffix if not (several and learn) else f"round {visits[n].round}" for n in mine]
        for name, numbers in by_key(zip(names, mine, strict=True)).items():
            lines.append(Measure(name, metric, _visit_values(columns, numbers), known_mean))
        if mine:
            lines.append(Measure("mean" + suffix, metric, _visit_values(columns, mine), summary=True))
    return method_columns(metric.title, titles, lines)


def _visit_values(
    columns: Sequence[Mapping[int, float | None]], numbers: Sequence[int]
) -> dict[object, Sequence[Values]]:
    return {row: [[column.get(number) for number in numbers]] for row, column in enumerate(columns)}


def result_tables(titles: Sequence[str], results: Sequence[Result]) -> list[Table]:
    """All tables of some results on one stream; results that cannot be compared are refused."""
    check_comparable(results)
    last = results[-1]
    key = last.metric.key
    met = [[*result.domains, *(result.held_out or [])] for result in results]
    visits = [Visit(one.name, one.severity, one.round, n < len(last.domains)) for n, one in enumerate(met[-1])]
    scores = [{n: one.scores.get(key) for n, one in enumerate(mine)} for mine in met]
    tables = [visit_table(titles, visits, scores, last.metric)]
    numbers = long_table((title, [result]) for title, result in zip(titles, results, strict=True))
    learnt, tested = ([one for one in numbers if one.held_out == held_out] for held_out, _ in _PARTS)
    rounds = range(1, 1 + max(one.round for one in numbers))
    if 1 < len(rounds) <= _MOST_ROUNDS:
        mine = [one for one in learnt if one.row == len(results) - 1]
        names = dict.fromkeys(one.domain for one in mine)
        lines = [measure(mine, name, last.metric, by="round", mean=known_mean, domain=name) for name in names]
        corner, headings = f"{titles[-1]}, {last.metric.title}", [f"round {number}" for number in rounds]
        tables.append(method_columns(corner, headings, lines, rounds, gain=False))
    tables.append(method_columns("mean", titles, _other_measures(learnt) + _other_measures(tested, _HELD_OUT)))
    tables.append(method_columns("class IoU, %", titles, _class_measures(learnt, last.classes)))
    return [table for table in tables if table.rows]


def orders_table(titles: Sequence[str], runs: Sequence[Sequence[Result]]) -> Table:
    """Mean scores over several runs of the same domains (a list of results each), their mean and deviation.

    The runs differ in the order of the domains, or in the domain that is left out. In the second case, only scores on
    that domain are shown, without a deviation: it would compare domains, not runs.
    """
    every = [result for results in runs for result in results]
    check_comparable(every, ignore=BY_ORDER)
    metric, left_out = every[0].metric, leaves_one_out(runs)
    numbers = []
    for stream, results in enumerate(runs):
        numbers += long_table(((title, [one]) for title, one in zip(titles, results, strict=True)), stream)
    lines: list[Measure] = []
    for held_out, suffix in [(True, "")] if left_out else _PARTS:
        if held_out and not all(result.held_out for result in every):
            continue
        mine = [one for one in numbers if one.held_out == held_out]
        lines += [measure(mine, name + suffix, metric, stream=n) for n, name in enumerate(run_names(runs))]
        mean = measure(mine, "mean" + suffix, metric)._replace(summary=True)
        lines.append(mean)
        if not left_out:
            deviations: Mapping[object, Sequence[Values]]
            deviations = {row: [[Cell.of(mean.spread(row)).deviation]] for row in range(len(titles))}
            lines.append(mean._replace(title="deviation" + suffix, runs=deviations, compared=False))
    return method_columns(f"{'left out,' if left_out else 'mean'} {metric.title}", titles, lines)


# A row for each method


def group_tables(table: BenchTable) -> list[Table]:
    """All tables of comparable results, without empty ones: the means first, then the scores by domain or stream."""
    metric, streams, numbers = table.metric, table.streams, []
    for stream, first in enumerate(streams):
        mine = [(row.name, [one for one in row.results if one.stream == first.stream]) for row in table.rows]
        numbers += long_table(mine, stream)
    learnt, tested = ([one for one in numbers if one.held_out == held_out] for held_out, _ in _PARTS)
    scores = f"{metric.title}, {SPREAD}."
    if len(streams) > 1:
        title, shown = ("Domains that are left out", tested) if table.leaves_out else ("Orders", learnt)
        names = map(_plain, run_names([[result] for result in streams]))
        columns = [measure(shown, name, metric, stream=stream) for stream, name in enumerate(names)]
        details = [method_rows(table, title, scores, columns, table.score)]
    else:
        details = [method_rows(table, "Domains", scores, _domain_measures(learnt, metric), lambda row: row.adapted)]
        if all(row.held_out for row in table.rows):
            columns = _domain_measures(tested, metric)
            details.append(method_rows(table, "Held-out domains", scores, columns, lambda row: row.held_out))
    others = _other_measures(learnt)
    about = "; ".join(f"{one.metric.name}: {one.metric.note}" for one in others)
    details.append(method_rows(table, "Other scores", f"{about[:1].upper()}{about[1:]}.", others))
    about = f"Intersection over union in percent, a mean over domains; {SPREAD}."
    details.append(method_rows(table, "Classes", about, _class_measures(learnt, streams[0].classes)))
    return [means_table(table), *(one for one in details if one.columns)]


def method_rows(
    table: BenchTable,
    title: str,
    note: str,
    measures: Sequence[Measure],
    score: Callable[[BenchRow], ScoreAndGain | None] | None = None,
) -> Table:
    """A column for each measure; with a score, its mean and gain are the last columns."""
    columns = [TableColumn.of(one.metric, one.title, over=one.over, summary=one.summary) for one in measures]
    if score is not None:
        columns.append(TableColumn.of(table.metric, "mean", summary=True))
        columns += [TableColumn.gains(table.metric)] if table.has_source else []
    rows = []
    for number, row in enumerate(table.rows):
        cells = [Cell.of(one.spread(number)) for one in measures]
        if score is not None:
            cells.append(mean_cell(table, row, score(row)))
            cells += [gain_cell(score(row))] if table.has_source else []
        rows.append((row.name, cells))
    return Table(title, note, columns, rows)


def _domain_measures(numbers: Sequence[Number], metric: Metric) -> list[Measure]:
    """A measure for each domain; with several rounds, one for each domain and round, or for each round if too many."""
    rounds = sorted({one.round for one in numbers})
    names = list(dict.fromkeys(one.domain for one in numbers))
    if len(rounds) == 1:
        return [measure(numbers, _plain(name), metric, domain=name) for name in names]
    if len(rounds) * (len(names) + 1) > _MOST_COLUMNS:
        return [measure(numbers, f"round {number}", metric, round=number) for number in rounds]
    found = []
    for number in rounds:
        mine = [measure(numbers, _plain(name), metric, round=number, domain=name) for name in names]
        mine.append(measure(numbers, "mean", metric, round=number)._replace(summary=True))
        found += [one._replace(over=f"round {number}") for one in mine]
    return found


def published_table(table: Published) -> Table:
    """The numbers of a paper; its column `fog (2)` becomes `fog` under the heading `round 2`."""
    titles = [_plain(name).removesuffix(")").partition(" (") for name in (*table.columns, "mean")]
    columns = [
        TableColumn.of(table.metric, title, over=f"round {number}" if number else "", summary=title == "mean")
        for title, _, number in titles
    ]
    rows = [(name, [Cell(value) for value in values]) for name, values in table.rows.items()]
    remark = f" Remark: {table.remark}." if table.remark else ""
    note = f"{table.metric.title}, from {table.source}. Protocol: {table.conditions}.{remark}"
    return Table("Published numbers", note, columns, rows)


def _plain(name: str) -> str:
    return name.replace("_", " ")
