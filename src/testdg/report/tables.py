"""The tables of results: scores per domain or per round, per class, and the spread over several orders."""

import statistics
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from testdg.report.table import Column, Entry, Table
from testdg.runs import DomainResult, Result, check_comparable
from testdg.runs.compare import BY_ORDER
from testdg.runs.protocol import Visit
from testdg.runs.result import mean_of, means
from testdg.runs.scores import Classification, Metric, Segmentation, other_metrics
from testdg.studies.summary import leaves_one_out, run_names

Scores = Mapping[int, float]
_MOST_ROUNDS = 10  # columns of the table of rounds


class Line(NamedTuple):
    """One line of a table that has a column for each method; None where there is no number (yet)."""

    name: str
    values: tuple[float | None, ...]
    metric: Metric
    summary: bool = False
    compared: bool = True

    def entries(self, gains: bool) -> list[Entry]:
        """The numbers, and how much better the last is than the first."""
        first, last = self.values[0], self.values[-1]
        known = self.compared and first is not None and last is not None
        gain = self.metric.gain(first or 0.0, last or 0.0) if known else None
        return [Entry(value, digits=self.metric.digits) for value in (*self.values, *([gain] if gains else []))]


def make_table(corner: str, titles: Sequence[str], lines: Sequence[Line], gain: bool = True) -> Table:
    """Lines under the titles of methods; with `gain`, a last column says how much better the last is than the first."""
    gains = gain and len(titles) > 1
    columns = [*map(Column, titles), *([Column("gain", signed=True)] if gains else [])]
    rows = [(line.name, line.entries(gains)) for line in lines]
    return Table("", "", columns, rows, corner, [line.name for line in lines if line.summary])


def visit_table(
    titles: Sequence[str], visits: Sequence[Visit], columns: Sequence[Scores], metric: Metric = Classification.metric
) -> Table:
    """Scores of each column, by number of the visit, as far as they are known: a row per domain or per round."""
    learnt = [number for number, visit in enumerate(visits) if visit.learn]
    tested = [number for number, visit in enumerate(visits) if not visit.learn]
    rounds = max(visit.round for visit in visits) > 1
    keys = {n: f"round {visits[n].round}" if rounds else visits[n].name for n in learnt}
    rows = _grouped(keys, columns, "mean", metric)
    if tested:
        rows += _grouped({n: f"{visits[n].name} (held out)" for n in tested}, columns, "mean (held out)", metric)
    return make_table(metric.title, titles, rows)


def _grouped(keys: Mapping[int, str], columns: Sequence[Scores], summary: str, metric: Metric) -> list[Line]:
    """A row per key, the mean of its visits, and a row for the mean of all visits once they are all known."""
    groups = {name: [number for number in keys if keys[number] == name] for name in keys.values()}
    rows = [_row(name, numbers, columns, metric) for name, numbers in groups.items()]
    whole = (mean_of([column[n] for n in keys]) if keys.keys() <= column.keys() else None for column in columns)
    return [*rows, Line(summary, tuple(whole), metric, summary=True)]


def _row(name: str, numbers: Sequence[int], columns: Sequence[Scores], metric: Metric) -> Line:
    """The means of some visits, as far as they are known; columns that know different ones are not compared."""
    known = [[number for number in numbers if number in column] for column in columns]
    values = tuple(mean_of([column[n] for n in found]) for column, found in zip(columns, known, strict=True))
    return Line(name, values, metric, compared=known[0] == known[-1])


def result_tables(titles: Sequence[str], results: Sequence[Result]) -> list[Table]:
    """Every table of some results on one stream; results with different records are refused."""
    check_comparable(results)
    last = results[-1]
    met = [(domain, True) for domain in last.domains] + [(domain, False) for domain in last.held_out or []]
    visits = [Visit(domain.name, domain.severity, domain.round, learn) for domain, learn in met]
    columns = [_scores([*result.domains, *(result.held_out or [])], last.metric) for result in results]
    tables = [visit_table(titles, visits, columns, last.metric), score_table(titles, results)]
    if 1 < max(visit.round for visit in visits) <= _MOST_ROUNDS:
        tables.insert(1, round_table(titles[-1], last))
    return [table for table in [*tables, class_table(titles, results)] if table.rows]


def _scores(domains: Sequence[DomainResult], metric: Metric) -> Scores:
    found = ((number, domain.scores.get(metric.key)) for number, domain in enumerate(domains))
    return {number: score for number, score in found if score is not None}


def score_table(titles: Sequence[str], results: Sequence[Result]) -> Table:
    """Means of the scores besides the one that tables show; no rows where no result has them."""
    learnt, tested = [means(one.domains) for one in results], [means(one.held_out or []) for one in results]
    rows = []
    for suffix, columns in (("", learnt), (" (held out)", tested)):
        for metric in other_metrics():
            values = tuple(column.get(metric.key) for column in columns)
            if any(value is not None for value in values):
                rows.append(Line(metric.title + suffix, values, metric))
    return make_table("mean", titles, rows)


def class_table(titles: Sequence[str], results: Sequence[Result]) -> Table:
    """The IoU of each class, a mean over the visits that were learnt from; no rows for classification."""
    found = [result.class_means() for result in results]
    rows = [Line(name, tuple(one[name] for one in found), Segmentation.metric) for name in results[-1].classes]
    return make_table("class IoU, %", titles, rows)


def round_table(title: str, result: Result) -> Table:
    """The scores of one method: a row per domain, a column per round."""
    rounds = sorted({domain.round for domain in result.domains})
    scores: dict[tuple[str, int], list[float]] = {}
    for number, score in _scores(result.domains, result.metric).items():
        scores.setdefault((result.domains[number].name, result.domains[number].round), []).append(score)
    names = dict.fromkeys(domain.name for domain in result.domains)
    rows = [Line(name, tuple(mean_of(scores.get((name, n), [])) for n in rounds), result.metric) for name in names]
    return make_table(f"{title}, {result.metric.title}", [f"round {number}" for number in rounds], rows, gain=False)


def orders_table(titles: Sequence[str], runs: Sequence[Sequence[Result]]) -> Table:
    """Mean scores over several runs of the same domains (a list of results each), their mean and deviation.

    The runs differ in the order of the domains, or in the one that is left out; then only that one counts, and there
    is no deviation, which would be one between domains.
    """
    check_comparable([result for results in runs for result in results], ignore=BY_ORDER)
    metric = runs[0][0].metric
    left_out, names = leaves_one_out(runs), run_names(runs)
    learnt = {name: [r.mean_score for r in results] for name, results in zip(names, runs, strict=True)}
    tested = {name: [r.held_out_score for r in results] for name, results in zip(names, runs, strict=True)}
    rows = [] if left_out else _spread(learnt, "", metric)
    if all(result.held_out for results in runs for result in results):
        rows += _spread(tested, "" if left_out else " (held out)", metric)
    if left_out:
        return make_table(f"left out, {metric.title}", titles, rows[:-1])
    return make_table(f"mean {metric.title}", titles, rows)


def _spread(scores: Mapping[str, Sequence[float | None]], suffix: str, metric: Metric) -> list[Line]:
    """A row per run, then mean and standard deviation (n - 1)."""
    columns = [[value for value in column if value is not None] for column in zip(*scores.values(), strict=True)]
    rows = [Line(name + suffix, tuple(values), metric) for name, values in scores.items()]
    deviations = tuple(statistics.stdev(column) if len(column) > 1 else None for column in columns)
    return [
        *rows,
        Line("mean" + suffix, tuple(mean_of(column) for column in columns), metric, summary=True),
        Line("deviation" + suffix, deviations, metric, summary=True, compared=False),
    ]
