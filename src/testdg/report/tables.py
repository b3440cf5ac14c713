"""The tables of results. One long table has a line for each number of each visit; tables of visits are pivots of it.

`testdg run` has a column for each method, pages and papers have a row for each.
"""

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from testdg.report.bench import SPREAD, mean_and_gain, means_table
from testdg.report.published import Published
from testdg.report.table import Column, Entry, Table
from testdg.runs import Result, check_comparable
from testdg.runs.compare import BY_ORDER
from testdg.runs.protocol import Visit
from testdg.runs.result import mean_of
from testdg.runs.scores import Classification, Metric, Segmentation, other_metrics
from testdg.spec import SOURCE
from testdg.studies import BenchTable
from testdg.studies.summary import ScoreAndGain, leaves_one_out, run_names, spread

_IOU = "IoU of "
_HELD_OUT = " (held out)"
_MOST_ROUNDS = 10  # columns of the table of rounds
_MOST_COLUMNS = 20
Scores = Mapping[int, float]
Key = tuple[Any, ...]
Mean = Callable[[Sequence[float | None]], float | None]
Pivot = dict[Key, list[list[float | None]]]
"""The values of each run, by the fields of rows and columns."""


class Number(NamedTuple):
    """A line of the long table: one number of one visit of one run."""

    row: int
    """Number of the row that the run belongs to."""
    name: str
    """Name of this row."""
    stream: int
    """Number of the stream, where runs differ in the order of domains or in those that are left out."""
    run: int
    """Number of the run within its row and stream."""
    seed: int
    domain: str
    round: int
    severity: int | None
    held_out: bool
    metric: str
    value: float | None
    """None where the metric is not defined, as the IoU of a class that a visit does not have."""


def long_table(rows: Iterable[tuple[str, Sequence[Result]]], stream: int = 0) -> list[Number]:
    """Every number of the runs of some named rows, in the order of the runs and their visits."""
    found = []
    for row, (name, results) in enumerate(rows):
        for run, result in enumerate(results):
            about = (row, name, stream, run, int(result.record.get("seed", 0)))
            visits = [(visit, False) for visit in result.domains] + [(visit, True) for visit in result.held_out or []]
            for visit, held_out in visits:
                where = (*about, visit.name, visit.round, visit.severity, held_out)
                metrics = (result.metric, *other_metrics())
                values = [(metric.key, visit.scores.get(metric.key)) for metric in metrics]
                overlaps = visit.class_iou or [None] * len(result.classes)
                values += [(_IOU + name, value) for name, value in zip(result.classes, overlaps, strict=True)]
                found += [Number(*where, key, value) for key, value in values]
    return found


def pivot(numbers: Iterable[Number], rows: Sequence[str], columns: Sequence[str]) -> Pivot:
    """The values of each run, by the fields of rows and columns."""
    found: dict[Key, dict[tuple[int, int], list[float | None]]] = {}
    for number in numbers:
        key = tuple(getattr(number, field) for field in (*rows, *columns))
        found.setdefault(key, {}).setdefault((number.stream, number.run), []).append(number.value)
    return {key: list(runs.values()) for key, runs in found.items()}


def known_mean(values: Sequence[float | None]) -> float | None:
    """The mean of the values that are known; None where none is."""
    return mean_of([value for value in values if value is not None])


# A column for each method


class Line(NamedTuple):
    """One line of a table that has a column for each method; None where there is no number (yet)."""

    name: str
    values: Sequence[float | None]
    metric: Metric
    summary: bool = False
    compared: bool = True


def line_table(corner: str, titles: Sequence[str], lines: Sequence[Line], gain: bool = True) -> Table:
    """Lines under the titles of methods; with `gain`, a last column says how much better the last is than the first."""
    gains = gain and len(titles) > 1
    columns = [*map(Column, titles), *([Column("gain", signed=True)] if gains else [])]
    rows = []
    for line in lines:
        first, last = line.values[0], line.values[-1]
        known = line.compared and first is not None and last is not None
        better = [line.metric.gain(first or 0.0, last or 0.0) if known else None] if gains else []
        rows.append((line.name, [Entry(value, digits=line.metric.digits) for value in (*line.values, *better)]))
    return Table("", "", columns, rows, corner, [line.name for line in lines if line.summary])


def visit_table(
    titles: Sequence[str], visits: Sequence[Visit], columns: Sequence[Scores], metric: Metric = Classification.metric
) -> Table:
    """Scores of each column by the number of the visit, as far as they are known: a row per domain or per round.

    A row has the mean of its known visits; columns that know different numbers of visits are not compared. The mean of
    all visits appears once they are all known.
    """
    several, lines = max(visit.round for visit in visits) > 1, []
    for held_out, suffix in ((False, ""), (True, _HELD_OUT)):
        names: dict[str, list[int]] = {}
        for number, visit in enumerate(visits):
            if visit.learn != held_out:
                name = f"round {visit.round}" if several and visit.learn else visit.name + suffix
                names.setdefault(name, []).append(number)
        for name, numbers in names.items():
            known = [[column[number] for number in numbers if number in column] for column in columns]
            alike = len(known[0]) == len(known[-1])
            lines.append(Line(name, [mean_of(values) for values in known], metric, compared=alike))
        if names:
            every = [number for numbers in names.values() for number in numbers]
            means = [mean_of([column.get(number) for number in every]) for column in columns]
            lines.append(Line("mean" + suffix, means, metric, summary=True))
    return line_table(metric.title, titles, lines)


def result_tables(titles: Sequence[str], results: Sequence[Result]) -> list[Table]:
    """Every table of some results on one stream; results with different records are refused."""
    check_comparable(results)
    last = results[-1]
    metric, columns = last.metric, range(len(results))
    met = [(domain, True) for domain in last.domains] + [(domain, False) for domain in last.held_out or []]
    visits = [Visit(domain.name, domain.severity, domain.round, learn) for domain, learn in met]
    numbers = long_table((title, [result]) for title, result in zip(titles, results, strict=True))
    mine = [[one.value for one in numbers if one.row == row and one.metric == metric.key] for row in columns]
    known = [{n: value for n, value in enumerate(values) if value is not None} for values in mine]
    tables = [visit_table(titles, visits, known, metric)]
    if 1 < max(visit.round for visit in visits) <= _MOST_ROUNDS:
        tables.append(_round_table(titles[-1], metric, [one for one in numbers if one.row == len(results) - 1]))
    found = pivot(numbers, ("held_out", "metric"), ("row",))

    def line(title: str, held_out: bool, key: str, one: Metric, mean: Mean = mean_of) -> Line:
        return Line(title, [mean(found.get((held_out, key, row), [[]])[0]) for row in columns], one)

    pairs = [(held_out, one) for held_out in (False, True) for one in other_metrics()]
    others = [line(one.title + _HELD_OUT * held_out, held_out, one.key, one) for held_out, one in pairs]
    tables.append(line_table("mean", titles, [one for one in others if {*one.values} != {None}]))
    classes = [line(name, False, _IOU + name, Segmentation.metric, known_mean) for name in last.classes]
    return [table for table in [*tables, line_table("class IoU, %", titles, classes)] if table.rows]


def _round_table(title: str, metric: Metric, numbers: Iterable[Number]) -> Table:
    """The scores of one method on the stream: a row per domain, a column per round."""
    mine = [one for one in numbers if not one.held_out and one.metric == metric.key]
    found, rounds = pivot(mine, ("domain",), ("round",)), sorted({one.round for one in mine})
    names = dict.fromkeys(one.domain for one in mine)
    lines = [Line(name, [known_mean(found.get((name, n), [[]])[0]) for n in rounds], metric) for name in names]
    return line_table(f"{title}, {metric.title}", [f"round {n}" for n in rounds], lines, gain=False)


def orders_table(titles: Sequence[str], runs: Sequence[Sequence[Result]]) -> Table:
    """Mean scores over several runs of the same domains (a list of results each), their mean and deviation.

    The runs differ in the order of the domains, or in the one that is left out; then only that one counts, and there
    is no deviation, which would be one between domains.
    """
    check_comparable([result for results in runs for result in results], ignore=BY_ORDER)
    metric, left_out, names = runs[0][0].metric, leaves_one_out(runs), run_names(runs)
    tested = all(result.held_out for results in runs for result in results)
    lines: list[Line] = []
    for held_out, suffix in ((False, ""), (True, "" if left_out else _HELD_OUT)):
        if (held_out and not tested) or (left_out and not held_out):
            continue
        scores = [[result.held_out_score if held_out else result.mean_score for result in results] for results in runs]
        lines += [Line(name + suffix, values, metric) for name, values in zip(names, scores, strict=True)]
        columns = [[value for value in column if value is not None] for column in zip(*scores, strict=True)]
        lines.append(Line("mean" + suffix, [mean_of(column) for column in columns], metric, summary=True))
        deviations = [statistics.stdev(column) if len(column) > 1 else None for column in columns]
        lines.append(Line("deviation" + suffix, deviations, metric, summary=True, compared=False))
    if left_out:
        return line_table(f"left out, {metric.title}", titles, lines[:-1])
    return line_table(f"mean {metric.title}", titles, lines)


# A row for each method


def group_sheets(table: BenchTable) -> list[Table]:
    """The tables of results that can be compared, without those that would be empty; the second has the domains."""
    streams = table.streams
    numbers = []
    for stream, first in enumerate(streams):
        mine = [(row.name, [one for one in row.results if one.stream == first.stream]) for row in table.rows]
        numbers += long_table(mine, stream)
    if len(streams) > 1:
        details = [_stream_sheet(table, numbers)]
    else:
        details = [_domain_sheet(table, "Domains", numbers, held_out=False)]
        if all(row.held_out for row in table.rows):
            details.append(_domain_sheet(table, "Held-out domains", numbers, held_out=True))
    learnt = [number for number in numbers if not number.held_out]
    sheets = [means_table(table), *details, _score_sheet(table, learnt), _class_sheet(table, learnt)]
    return [sheet for sheet in sheets if sheet.columns]


def _rows(table: BenchTable, keys: Sequence[Key], found: Pivot, mean: Mean = mean_of) -> list[tuple[str, list[Entry]]]:
    """For each row and column the mean over runs and its deviation; nothing where a run has no number."""
    rows = []
    for number, row in enumerate(table.rows):
        entries = []
        for key in keys:
            means = [mean(values) for values in found.get((number, *key), [])]
            known = [value for value in means if value is not None]
            entries.append(Entry.of(spread(known)) if known and len(known) == len(means) else Entry())
        rows.append((row.name, entries))
    return rows


def _main_sheet(
    table: BenchTable,
    title: str,
    places: Sequence[tuple[Column, Key]],
    found: Pivot,
    scores: Sequence[ScoreAndGain | None],
) -> Table:
    """Columns of scores, then mean and gain."""
    last = [Column.of(table.metric, "mean", summary=True)]
    last += [Column.gains(table.metric)] if table.has_source else []
    rows = _rows(table, [key for _, key in places], found)
    rows = [
        (name, [*entries, *mean_and_gain(table, row, score)])
        for (name, entries), row, score in zip(rows, table.rows, scores, strict=True)
    ]
    return Table(title, f"{table.metric.title}, {SPREAD}.", [*(column for column, _ in places), *last], rows)


def _domain_sheet(table: BenchTable, title: str, numbers: Sequence[Number], *, held_out: bool) -> Table:
    """The paper's table: a column for each domain (of each round, where there is room), then mean and gain."""
    metric = table.metric
    mine = [one for one in numbers if one.held_out == held_out and one.metric == metric.key]
    rounds = sorted({one.round for one in mine})
    names = list(dict.fromkeys(one.domain for one in mine))
    found = pivot(mine, ("row",), ("round", "domain")) | pivot(mine, ("row",), ("round",))
    places: list[tuple[Column, Key]] = []
    several = len(rounds) > 1
    for number in rounds:
        over = f"round {number}"
        if several and len(rounds) * (len(names) + 1) > _MOST_COLUMNS:
            places.append((Column.of(metric, over), (number,)))
            continue
        above = over if several else ""
        places += [(Column.of(metric, _plain(name), over=above), (number, name)) for name in names]
        places += [(Column.of(metric, "mean", summary=True, over=over), (number,))] if several else []
    return _main_sheet(table, title, places, found, [row.held_out if held_out else row.adapted for row in table.rows])


def _stream_sheet(table: BenchTable, numbers: Sequence[Number]) -> Table:
    """A column for each order of the domains, or for each domain that is left out, of which only that one counts."""
    metric, names = table.metric, run_names([[result] for result in table.streams])
    mine = [one for one in numbers if one.held_out == table.leaves_out and one.metric == metric.key]
    places = [(Column.of(metric, _plain(name)), (stream,)) for stream, name in enumerate(names)]
    title = "Domains that are left out" if table.leaves_out else "Orders"
    return _main_sheet(table, title, places, pivot(mine, ("row",), ("stream",)), list(map(table.score, table.rows)))


def _score_sheet(table: BenchTable, learnt: Sequence[Number]) -> Table:
    """Means of the scores besides the main one; no columns where no result has them."""
    found = pivot(learnt, ("row",), ("metric",))
    known = {key for (_, key), runs in found.items() if any(mean_of(values) is not None for values in runs)}
    shown = [metric for metric in other_metrics() if metric.key in known]
    rows = _rows(table, [(metric.key,) for metric in shown], found)
    note = "; ".join(f"{metric.name}: {metric.note}" for metric in shown)
    return Table("Other scores", f"{note[:1].upper()}{note[1:]}.", list(map(Column.of, shown)), rows)


def _class_sheet(table: BenchTable, learnt: Sequence[Number]) -> Table:
    """The IoU of each class, a mean over the visits that were learnt from; no columns for classification."""
    classes = table.streams[0].classes
    rows = _rows(table, [(_IOU + name,) for name in classes], pivot(learnt, ("row",), ("metric",)), known_mean)
    note = f"Intersection over union in percent, a mean over domains; {SPREAD}."
    return Table("Classes", note, [Column(name, True) for name in classes], rows)


def published_sheet(table: Published) -> Table:
    """What a paper published; `fog (2)` goes below `round 2`."""
    titles = [_plain(name).removesuffix(")").partition(" (") for name in (*table.columns, "mean")]
    columns = [
        Column.of(table.metric, title, over=f"round {number}" if number else "", summary=title == "mean")
        for title, _, number in titles
    ]
    rows = [(name, [Entry(value) for value in values]) for name, values in table.rows.items()]
    remark = f" Remark: {table.remark}." if table.remark else ""
    note = f"{table.metric.title}, from {table.source}. Protocol: {table.conditions}.{remark}"
    return Table("Published numbers", note, columns, rows)


def source_gains(table: BenchTable, sheet: Table) -> dict[str, list[float | None]]:
    """How much better each row of a sheet is than Source, column by column; empty where Source is missing."""
    places = [place for place, row in enumerate(table.rows) if row.method == SOURCE]
    if not places:
        return {}
    found: dict[str, list[float | None]] = {}
    for place, (name, entries) in enumerate(sheet.rows):
        if place not in places:
            found[name] = []
            for before, after, column in zip(sheet.rows[places[0]][1], entries, sheet.columns, strict=True):
                known = before.value is not None and after.value is not None and not column.signed
                better = (after.value or 0.0) - (before.value or 0.0)
                found[name].append((better if column.higher else -better) if known else None)
    return found


def _plain(name: str) -> str:
    return name.replace("_", " ")
