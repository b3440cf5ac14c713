"""Summaries of benches: tables with a row per name, its spread over runs, and its gain over Source with an interval."""

import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from testdg.runs import DomainResult, Result, comparable
from testdg.runs.compare import by_key, grouped, same_but_for_order
from testdg.runs.scores import Classification, Metric
from testdg.spec import SOURCE, RunSpec
from testdg.studies.engine import Complete, Failed

Pair = tuple[Sequence[DomainResult], Sequence[DomainResult]]

Matrix = NDArray[np.float64]
RESAMPLES = 10_000
COVERAGE = 0.95


@dataclass(frozen=True)
class Spread:
    """Mean of some runs and their standard deviation (n - 1); None for a single run."""

    mean: float
    deviation: float | None

    def show(self, metric: Metric) -> str:
        return metric.show(self.mean, self.deviation)


@dataclass(frozen=True)
class Gain:
    """Improvement of the score over Source, and its interval; no interval (None) for one run on one domain."""

    mean: float
    low: float | None
    high: float | None


def spread(values: Sequence[float]) -> Spread:
    return Spread(statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else None)


def paired_gain(pairs: Sequence[Pair], metric: Metric = Classification.metric) -> Gain:
    """Gain of runs over their references (first of each pair): visits are paired, means are unweighted over visits."""
    names = list(dict.fromkeys(visit.name for reference, _ in pairs for visit in reference))
    sums, counts = np.zeros((2, len(pairs), len(names)))
    for row, (reference, run) in enumerate(pairs):
        for before, after in zip(reference, run, strict=True):
            sums[row, names.index(before.name)] += metric.gain(before.known(metric.key), after.known(metric.key))
            counts[row, names.index(before.name)] += 1
    interval = bootstrap_interval(sums, counts) if sums.size > 1 else (None, None)
    return Gain(float(sums.sum() / counts.sum()), *interval)


def bootstrap_interval(
    sums: Matrix, counts: Matrix, *, resamples: int = RESAMPLES, coverage: float = COVERAGE, seed: int = 0
) -> tuple[float, float]:
    """Percentile interval of the mean difference when runs and domains are resampled with replacement.

    `sums` (runs, domains) are differences summed over the visits to a domain, `counts` the number of visits, of the
    same shape or (domains) where all runs have the same. A resample draws as many runs and as many domains as there
    are, independently, and crosses them; one without a visit is left out. Runs share the domains, so their visits are
    not independent: drawing visits one by one would make the interval too narrow.
    """
    runs, domains = sums.shape
    generator = np.random.default_rng(seed)
    drawn_runs = generator.multinomial(runs, np.full(runs, 1 / runs), resamples)  # (B, runs): how often each is drawn
    drawn_domains = generator.multinomial(domains, np.full(domains, 1 / domains), resamples)  # (B, domains)
    totals, visits = (
        ((drawn_runs @ matrix) * drawn_domains).sum(1) for matrix in (sums, np.broadcast_to(counts, sums.shape))
    )
    means = totals[visits > 0] / visits[visits > 0]
    low, high = np.quantile(means, [(1 - coverage) / 2, (1 + coverage) / 2])
    return float(low), float(high)


Ended = tuple[RunSpec, Result]


@dataclass(frozen=True)
class ScoreAndGain:
    """A mean error (or mIoU) over runs, and its gain over Source; no gain for Source, or if it was not run."""

    value: Spread
    gain: Gain | None


@dataclass(frozen=True)
class BenchRow:
    """The runs of one name on one stream."""

    name: str
    method: str
    results: list[Result]
    adapted: ScoreAndGain
    held_out: ScoreAndGain | None
    seconds: float
    """Mean time of a run."""

    @property
    def metric(self) -> Metric:
        return self.results[0].metric

    def to_dict(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "method": self.method,
            "settings": {k: v for k, v in self.results[0].method["settings"].items() if k != "seed"},
            "tuning": self.results[0].record["tuning"],
            self.metric.key: _plain_score(self.adapted, self.metric),
            "held_out": None if self.held_out is None else _plain_score(self.held_out, self.metric),
            "seconds": self.seconds,
            "runs": [_plain_run(result) for result in self.results],
        }


@dataclass(frozen=True)
class BenchTable:
    """Rows whose runs can be compared: one benchmark, one protocol, one model."""

    benchmark: str
    protocol: str
    record: dict[str, Any]
    """The record of the first run; other runs may differ in seed, settings and order of the domains."""
    rows: list[BenchRow]

    @property
    def metric(self) -> Metric:
        return self.rows[0].metric

    @property
    def has_source(self) -> bool:
        return any(row.method == SOURCE for row in self.rows)

    @property
    def streams(self) -> list[Result]:
        """One result for each stream, sorted. Streams differ in the order of the domains or in those left out."""
        found = {result.stream: result for row in reversed(self.rows) for result in reversed(row.results)}
        return sorted(found.values(), key=lambda result: (result.record["order"], result.stream[::-1]))

    @property
    def leaves_out(self) -> bool:
        """Whether each stream leaves out other domains, so that only the scores on those count."""
        return len(self.streams) > 1 and leaves_one_out([[result] for result in self.streams])

    def score(self, row: BenchRow) -> ScoreAndGain:
        """The score to compare: on the left-out domains if each stream leaves out others, else on the stream."""
        return self.shown(row.held_out if self.leaves_out and row.held_out else row.adapted)

    def mean(self, result: Result) -> float | None:
        """The score of one run to compare, chosen as in `score`."""
        return result.held_out_score if self.leaves_out else result.mean_score

    def shown(self, score: ScoreAndGain) -> ScoreAndGain:
        """A score as tables show it: no deviation if it would compare left-out domains instead of runs."""
        return replace(score, value=replace(score.value, deviation=None)) if self.leaves_out else score

    def whole(self, row: BenchRow) -> bool:
        """Whether a row has a run on every stream, so that its mean can be compared with the others."""
        return {result.stream for result in row.results} == {result.stream for result in self.streams}

    def to_dict(self) -> dict[str, Any]:
        rows = [row.to_dict() for row in self.rows]
        conditions = {key: value for key, value in self.record.items() if key not in ("seed", "tuning")}
        return {"benchmark": self.benchmark, "protocol": self.protocol, "conditions": conditions, "rows": rows}


def leaves_one_out(runs: Sequence[Sequence[Result]]) -> bool:
    """Whether runs share an order of the domains, so that they differ in the domains that they leave out."""
    return len({results[0].record["order"] for results in runs}) < len(runs)


def run_names(runs: Sequence[Sequence[Result]]) -> list[str]:
    """The order of the domains of each run, or the domains that it leaves out."""
    if not leaves_one_out(runs):
        return [str(results[0].record["order"]) for results in runs]
    return [", ".join(domain.name for domain in results[0].held_out or []) for results in runs]


def summarise(specs: Sequence[RunSpec], ends: Iterable[Complete | Failed]) -> list[BenchTable]:
    """The tables of all complete runs, in the order of the runs."""
    ended = [(specs[end.number], end.result) for end in ends if isinstance(end, Complete)]
    by_protocol = by_key(((pair[0].benchmark, str(pair[0].protocol)), pair) for pair in ended)
    return [
        make_table(protocol, group[0][1].record, by_key((spec.name, result) for spec, result in group).items())
        for (_, protocol), pairs in by_protocol.items()
        for group in _comparable(pairs)
    ]


def _comparable(complete: Sequence[Ended]) -> list[list[Ended]]:
    """Groups of runs on one protocol that can be compared: the same data, batch size, model and so on."""
    several = len({spec.stream for spec, _ in complete}) > 1
    fits = same_but_for_order if several else comparable
    return grouped(complete, lambda first, other: fits(first[1], other[1]))


def make_table(protocol: str, record: dict[str, Any], rows: Iterable[tuple[str, list[Result]]]) -> BenchTable:
    """The table of some rows, compared with Source on the same streams."""
    named = list(rows)
    sources = [result for _, results in named for result in results if result.method["name"] == SOURCE]
    return BenchTable(record["benchmark"], protocol, record, [_row(*row, sources) for row in named])


def _row(name: str, results: list[Result], sources: Sequence[Result]) -> BenchRow:
    method = results[0].method["name"]
    references = [] if method == SOURCE else sources
    tested = all(result.held_out for result in results)
    return BenchRow(
        name,
        method,
        results,
        _score(results, references, lambda result: result.domains),
        _score(results, references, lambda result: result.held_out or []) if tested else None,
        statistics.fmean(result.seconds for result in results),
    )


def _score(
    results: Sequence[Result], sources: Sequence[Result], visits: Callable[[Result], Sequence[DomainResult]]
) -> ScoreAndGain:
    metric = results[0].metric
    values = spread([statistics.fmean(visit.known(metric.key) for visit in visits(result)) for result in results])
    paired = [(next((source for source in sources if source.stream == run.stream), None), run) for run in results]
    pairs = [(visits(source), visits(run)) for source, run in paired if source is not None]
    return ScoreAndGain(values, paired_gain(pairs, metric) if len(pairs) == len(results) else None)


def _plain_score(score: ScoreAndGain, metric: Metric) -> dict[str, Any]:
    return {metric.key: asdict(score.value), "gain": None if score.gain is None else asdict(score.gain)}


def _plain_run(result: Result) -> dict[str, Any]:
    return {
        "seed": result.record["seed"],
        "order": result.record["order"],
        f"mean_{result.metric.key}": result.mean_score,
        "held_out_mean": result.held_out_score,
        "seconds": result.seconds,
        "folder": str(result.folder),
    }
