"""Statistics of a bench: spread over runs, and paired differences with a bootstrap interval."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from testdg.evaluation import DomainResult

Matrix = np.ndarray[Any, np.dtype[np.float64]]
RESAMPLES = 10_000
COVERAGE = 0.95


@dataclass(frozen=True)
class Spread:
    """Mean of some runs and their standard deviation (n - 1); None for a single run."""

    mean: float
    deviation: float | None


@dataclass(frozen=True)
class Gain:
    """How much lower the error is than Source's, and the interval of that; None where nothing can be resampled."""

    mean: float
    low: float | None
    high: float | None


def spread(values: Sequence[float]) -> Spread:
    """Mean and standard deviation of some runs."""
    return Spread(statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else None)


def paired_gain(pairs: Sequence[tuple[Sequence[DomainResult], Sequence[DomainResult]]]) -> Gain:
    """Gain of runs over their references (first of each pair): visits are paired, means are unweighted over visits."""
    names = list(dict.fromkeys(visit.name for visit in pairs[0][0]))
    sums, counts = np.zeros((len(pairs), len(names))), np.zeros(len(names))
    for row, (reference, run) in enumerate(pairs):
        for before, after in zip(reference, run, strict=True):
            sums[row, names.index(before.name)] += before.error - after.error
    for visit in pairs[0][0]:
        counts[names.index(visit.name)] += 1
    interval = bootstrap_interval(sums, counts) if sums.size > 1 else (None, None)
    return Gain(float(sums.sum() / counts.sum() / len(pairs)), *interval)


def bootstrap_interval(
    sums: Matrix, counts: Matrix, *, resamples: int = RESAMPLES, coverage: float = COVERAGE, seed: int = 0
) -> tuple[float, float]:
    """Percentile interval of the mean difference when runs and domains are drawn anew, with replacement.

    `sums` (runs, domains) are differences summed over the visits to a domain, `counts` (domains) the number of visits.
    A resample draws as many runs and as many domains as there are, independently, and crosses them.
    """
    runs, domains = sums.shape
    generator = np.random.default_rng(seed)
    drawn_runs = generator.multinomial(runs, np.full(runs, 1 / runs), resamples)  # (B, runs): how often each is drawn
    drawn_domains = generator.multinomial(domains, np.full(domains, 1 / domains), resamples)  # (B, domains)
    totals = ((drawn_runs @ sums) * drawn_domains).sum(1)
    means = totals / (runs * (drawn_domains @ counts))
    low, high = np.quantile(means, [(1 - coverage) / 2, (1 + coverage) / 2])
    return float(low), float(high)
