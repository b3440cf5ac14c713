"""Statistics of a bench: spread over runs, and paired differences with a bootstrap interval."""

import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from testdg.methods import find_method, methods
from testdg.runs import DomainResult
from testdg.runs.scores import Classification, Metric
from testdg.schema import plain

Pair = tuple[Sequence[DomainResult], Sequence[DomainResult]]

Matrix = np.ndarray[Any, np.dtype[np.float64]]
RESAMPLES = 10_000
COVERAGE = 0.95


@dataclass(frozen=True)
class Spread:
    """Mean of some runs and their standard deviation (n - 1); None for a single run."""

    mean: float
    deviation: float | None

    def show(self, metric: Metric) -> str:
        """The mean as text."""
        return metric.show(self.mean, self.deviation)


@dataclass(frozen=True)
class Gain:
    """How much better the score is than Source's, and the interval of that; None where nothing can be resampled."""

    mean: float
    low: float | None
    high: float | None


def spread(values: Sequence[float]) -> Spread:
    """Mean and standard deviation of some runs."""
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
    """Percentile interval of the mean difference when runs and domains are drawn anew, with replacement.

    `sums` (runs, domains) are differences summed over the visits to a domain, `counts` the number of visits, of the
    same shape or (domains) where all runs have the same. A resample draws as many runs and as many domains as there
    are, independently, and crosses them; one without a visit is left out.
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


def settings_of(method: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a result's method, seed apart; one that did not exist when it was run has its default."""
    name = method["name"]
    defaults = plain(asdict(find_method(name).Settings())) if name in methods() else {}
    return {key: value for key, value in {**defaults, **method["settings"]}.items() if key != "seed"}


def unusual(mine: Mapping[str, Any], all_of_them: Sequence[Mapping[str, Any]], method: str) -> list[str]:
    """Settings of a variant whose value is not the most frequent one among all variants; of two, the method's own."""
    defaults = settings_of({"name": method, "settings": {}})
    usual = {key: _most_frequent([one.get(key) for one in all_of_them], defaults.get(key)) for key in mine}
    return [key for key, value in mine.items() if json.dumps(value) != usual[key]]


def _most_frequent(values: Sequence[Any], default: Any) -> str:
    found = statistics.multimode(json.dumps(value) for value in values)
    return text if (text := json.dumps(default)) in found else found[0]
