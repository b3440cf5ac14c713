import itertools
import statistics

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from testdg.runs import DomainResult
from testdg.runs.scores import Segmentation
from testdg.studies.rows import settings_of, unusual
from testdg.studies.summary import (
    Gain,
    Matrix,
    bootstrap_interval,
    paired_gain,
    spread,
)

DIFFERENCES = arrays(np.float64, st.tuples(st.integers(1, 4), st.integers(1, 5)), elements=st.floats(-50, 50, width=32))


def every_resample(sums: Matrix, counts: Matrix) -> list[float]:
    """The mean of every resample that can be drawn, in plain Python; all are equally likely."""
    runs, domains = range(sums.shape[0]), range(sums.shape[1])
    means = []
    for chosen in itertools.product(runs, repeat=len(runs)):
        for names in itertools.product(domains, repeat=len(domains)):
            total = sum(float(sums[run, name]) for run in chosen for name in names)
            means.append(total / sum(float(counts[name]) for _ in chosen for name in names))
    return means


def share_below(values: list[float], bound: float) -> float:
    return statistics.fmean(value <= bound + 1e-9 for value in values)


@pytest.mark.parametrize("counts", [[1.0, 1.0, 1.0, 1.0], [5.0, 9.0, 9.0, 1.0]])
def test_the_interval_is_that_of_all_resamples(counts: list[float]) -> None:
    sums, visits = np.random.default_rng(1).normal(3, 10, (3, 4)), np.array(counts)
    means = every_resample(sums, visits)  # 27 * 256 of them
    for coverage in (0.5, 0.8, 0.95):
        low, high = bootstrap_interval(sums, visits, coverage=coverage, resamples=40_000)
        assert share_below(means, low) == pytest.approx((1 - coverage) / 2, abs=0.01)
        assert share_below(means, high) == pytest.approx((1 + coverage) / 2, abs=0.01)


@settings(max_examples=25, deadline=None)
@given(DIFFERENCES, st.floats(-20, 20), st.floats(0.1, 10))
def test_the_interval_moves_and_stretches_with_the_differences(sums: Matrix, shift: float, scale: float) -> None:
    counts = np.ones(sums.shape[1])
    low, high = bootstrap_interval(sums, counts, resamples=200)
    assert sums.min() - 1e-9 <= low <= high <= sums.max() + 1e-9
    moved = bootstrap_interval(scale * sums + shift, counts, resamples=200)
    assert moved == pytest.approx((scale * low + shift, scale * high + shift), abs=1e-6)
    assert bootstrap_interval(-sums, counts, resamples=200) == pytest.approx((-high, -low), abs=1e-9)


def test_equal_differences_leave_no_doubt_and_the_seed_decides_the_draws() -> None:
    assert bootstrap_interval(np.full((3, 4), 2.5), np.ones(4)) == pytest.approx((2.5, 2.5))
    sums, counts = np.arange(12.0).reshape(3, 4), np.ones(4)
    assert bootstrap_interval(sums, counts) == bootstrap_interval(sums, counts)
    assert bootstrap_interval(sums, counts, resamples=50) != bootstrap_interval(sums, counts, resamples=50, seed=1)


def visits(*errors: tuple[str, float]) -> list[DomainResult]:
    return [DomainResult(name, 10, {"error": error}) for name, error in errors]


def test_the_gain_is_paired_by_visit_and_unweighted_over_visits() -> None:
    source = visits(("fog", 50.0), ("snow", 30.0), ("fog", 40.0))
    runs = [visits(("fog", 40.0), ("snow", 32.0), ("fog", 37.0)), visits(("fog", 44.0), ("snow", 30.0), ("fog", 40.0))]
    gain = paired_gain([(source, run) for run in runs])
    assert gain.mean == pytest.approx((10 - 2 + 3 + 6 + 0 + 0) / 6)
    sums, counts = np.array([[13.0, -2.0], [6.0, 0.0]]), np.array([2.0, 1.0])
    assert (gain.low, gain.high) == bootstrap_interval(sums, counts)


def test_the_interval_holds_whole_domains_together() -> None:
    source, run = visits(("fog", 9.0), ("fog", 5.0)), [visits(("fog", 1.0), ("fog", 5.0))]
    assert paired_gain([(source, run[0])]) == Gain(4.0, None, None)  # one run, one domain: nothing to draw


def test_spread_is_the_sample_deviation() -> None:
    assert (spread([3.0]).mean, spread([3.0]).deviation) == (3.0, None)
    found = spread([1.0, 2.0, 6.0])
    assert found.mean == pytest.approx(3.0)
    assert found.deviation == pytest.approx(float(np.std([1.0, 2.0, 6.0], ddof=1)))


def test_runs_that_leave_out_different_domains_are_paired_each_with_its_own() -> None:
    def visit(name: str, score: float) -> list[DomainResult]:
        return [DomainResult(name, 4, {"error": 10.0, "miou": score})]

    pairs = [(visit("fog", 50.0), visit("fog", 53.0)), (visit("night", 30.0), visit("night", 31.0))]
    gain = paired_gain(pairs, Segmentation.metric)
    assert (gain.mean, gain.low, gain.high) == (2.0, 1.0, 3.0)


def test_where_two_values_are_equally_frequent_the_methods_own_is_the_usual_one() -> None:
    own = settings_of({"name": "testdg", "settings": {}})
    without = {**own, "invariance": False}
    for variants in ([own, without], [without, own]):
        assert unusual(own, variants, "testdg") == []
        assert unusual(without, variants, "testdg") == ["invariance"]
    assert unusual(own, [own, without, without], "testdg") == ["invariance"]
    assert unusual({"a": 1}, [{"a": 1}, {"a": 2}], "a_method_of_mine") == []
