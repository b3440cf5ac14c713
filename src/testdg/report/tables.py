"""The tables of results: errors per domain or per round, the other scores, and the spread over several orders."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

from testdg.evaluation import DomainResult, Result, check_comparable
from testdg.evaluation.plan import Visit
from testdg.evaluation.result import means
from testdg.report.table import Row, Table

Errors = Mapping[int, float]
_SCORES = {"early_error": ("early error, %", 1), "nll": ("NLL", 3), "ece": ("ECE, %", 1)}
_MOST_ROUNDS = 10  # columns of the table of rounds


def error_table(titles: Sequence[str], visits: Sequence[Visit], columns: Sequence[Errors]) -> Table:
    """Errors of each column, by number of the visit, as far as they are known: a row per domain or per round."""
    learnt = [number for number, visit in enumerate(visits) if visit.learn]
    tested = [number for number, visit in enumerate(visits) if not visit.learn]
    rounds = max(visit.round for visit in visits) > 1
    keys = {n: f"round {visits[n].round}" if rounds else visits[n].name for n in learnt}
    rows = _grouped(keys, columns, "mean")
    if tested:
        rows += _grouped({n: f"{visits[n].name} (held out)" for n in tested}, columns, "mean (held out)")
    return Table("error, %", titles, rows)


def _grouped(keys: Mapping[int, str], columns: Sequence[Errors], summary: str) -> list[Row]:
    """A row per key, the mean of its visits, and a row for the mean of all visits once they are all known."""
    groups = {name: [number for number in keys if keys[number] == name] for name in keys.values()}
    rows = [
        Row(name, tuple(_mean([column[n] for n in numbers if n in column]) for column in columns))
        for name, numbers in groups.items()
    ]
    whole = (_mean([column[n] for n in keys]) if keys.keys() <= column.keys() else None for column in columns)
    return [*rows, Row(summary, tuple(whole), summary=True)]


def _mean(values: Sequence[float]) -> float | None:
    return statistics.fmean(values) if values else None


def result_tables(titles: Sequence[str], results: Sequence[Result]) -> list[Table]:
    """Every table of some results on one stream; results with different protocols are refused."""
    check_comparable(results)
    last = results[-1]
    visits = [_visit(domain, True) for domain in last.domains]
    visits += [_visit(domain, False) for domain in last.held_out or []]
    columns = [dict(enumerate(d.error for d in [*r.domains, *(r.held_out or [])])) for r in results]
    tables = [error_table(titles, visits, columns), score_table(titles, results)]
    if 1 < max(visit.round for visit in visits) <= _MOST_ROUNDS:
        tables.insert(1, round_table(titles[-1], last))
    return [table for table in tables if table.rows]


def _visit(domain: DomainResult, learn: bool) -> Visit:
    return Visit(domain.name, domain.severity, domain.round, learn)


def score_table(titles: Sequence[str], results: Sequence[Result]) -> Table:
    """Means of the scores besides the error; no rows where no result has them."""
    rows = _score_rows([means(result.domains) for result in results], "")
    if results[-1].held_out:
        rows += _score_rows([means(result.held_out or []) for result in results], " (held out)")
    return Table("mean", titles, rows)


def _score_rows(columns: Sequence[Mapping[str, float | None]], suffix: str) -> list[Row]:
    found = {key: tuple(column.get(key) for column in columns) for key in _SCORES}
    return [
        Row(_SCORES[key][0] + suffix, values, digits=_SCORES[key][1])
        for key, values in found.items()
        if any(value is not None for value in values)
    ]


def round_table(title: str, result: Result) -> Table:
    """The errors of one method: a row per domain, a column per round."""
    rounds = sorted({domain.round for domain in result.domains})
    names = dict.fromkeys(domain.name for domain in result.domains)
    cells = {
        (name, number): _mean([d.error for d in result.domains if (d.name, d.round) == (name, number)])
        for name in names
        for number in rounds
    }
    rows = [Row(name, tuple(cells[name, number] for number in rounds)) for name in names]
    return Table(f"{title}, error, %", [f"round {number}" for number in rounds], rows, gain=False)


def orders_table(titles: Sequence[str], runs: Sequence[Sequence[Result]]) -> Table:
    """Mean errors over several orders of the same domains (a list of results each), their mean and deviation."""
    check_comparable([result for results in runs for result in results], ignore=("domains", "held_out"))
    rows = _spread({results[-1].protocol["order"]: [r.mean_error for r in results] for results in runs}, "")
    if all(result.held_out for results in runs for result in results):
        found = {results[-1].protocol["order"]: [r.held_out_mean or 0.0 for r in results] for results in runs}
        rows += _spread(found, " (held out)")
    return Table("mean error, %", titles, rows)


def _spread(errors: Mapping[str, Sequence[float]], suffix: str) -> list[Row]:
    """A row per order, then mean and standard deviation (n - 1)."""
    columns = list(zip(*errors.values(), strict=True))
    rows = [Row(name + suffix, tuple(values)) for name, values in errors.items()]
    deviations = tuple(statistics.stdev(column) if len(column) > 1 else None for column in columns)
    return [
        *rows,
        Row("mean" + suffix, tuple(statistics.fmean(column) for column in columns), summary=True),
        Row("deviation" + suffix, deviations, summary=True, compared=False),
    ]
