"""A jump of the confidence, weighed against its noise."""

import json
import random
from collections.abc import Iterable

import numpy as np
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from testdg.methods.vdp import JumpDetector


def changes(detector: JumpDetector, confidences: Iterable[float]) -> list[int]:
    return [k for k, confidence in enumerate(confidences) if detector.update(confidence)]


def literal(values: list[float], threshold: float, history: int) -> list[int]:
    """Compare each value with those before it, no farther back than `history` or the last change."""
    found: list[int] = []
    for k, value in enumerate(values):
        first = max([0, k - history, *found[-1:]])
        if max((abs(value - other) for other in values[first:k]), default=0) > threshold:
            found.append(k)
    return found


HUNDREDTHS = st.integers(0, 100).map(lambda value: value / 100)


@settings(max_examples=100, deadline=None)
@given(
    values=st.lists(HUNDREDTHS, max_size=30),
    threshold=st.sampled_from([0.02, 0.105, 0.2, 0.4, 0.8]),
    history=st.integers(1, 4),
)
def test_changes_are_those_of_the_definition(values: list[float], threshold: float, history: int) -> None:
    assert changes(JumpDetector(threshold, history), values) == literal(values, threshold, history)


def test_the_first_batch_is_no_change() -> None:
    for significance in (0.0, 3.0):
        assert not JumpDetector(0.0, 2, 1, significance).update(0.9)


@pytest.mark.parametrize("history", [1, 2, 3])
def test_one_shift_is_one_change(history: int) -> None:
    # With two batches of history the old level is still in reach of the batch after the change.
    assert changes(JumpDetector(0.1, history), [0.8] * 4 + [0.5] * 5 + [0.9] * 5) == [4, 9]


def test_noise_is_not_significant_and_a_shift_is() -> None:
    draw = random.Random(0)
    calm = [draw.betavariate(4, 1) for _ in range(1000)]  # single images: mean 0.8, standard deviation 0.16
    shifted = [draw.betavariate(2, 2) for _ in range(300)]  # mean 0.5
    assert len(changes(JumpDetector(0.1), calm)) > 300
    detector = JumpDetector(0.1, history=100, recent=30, significance=5.0)
    assert changes(detector, calm) == []
    found = changes(detector, shifted)
    assert len(found) == 1
    assert found[0] < 60


@settings(max_examples=60, deadline=None)
@given(
    old=st.lists(st.integers(0, 100), min_size=3, max_size=8),
    new=st.lists(st.integers(0, 100), min_size=2, max_size=4),
    significance=st.floats(0.5, 6),
)
@example(old=[0, 10, 20], new=[40, 50], significance=4.5)  # with a degree of freedom more it would be significant
def test_significance_is_that_of_the_two_sample_t_test(old: list[int], new: list[int], significance: float) -> None:
    values = [value / 100 for value in [*old, *new]]
    first, second = np.array(values[: len(old)]), np.array(values[len(old) :])
    pooled = (first.var() * len(first) + second.var() * len(second)) / (len(values) - 2)
    gap = abs(first.mean() - second.mean())
    bar = max(0.05, significance * np.sqrt(pooled * (1 / len(first) + 1 / len(second))))
    assume(abs(gap - bar) > 1e-9)
    detector = JumpDetector(0.05, len(old), len(new), significance)
    detector.past = values[:-1]
    assert detector.update(values[-1]) == (gap > bar)


def test_after_a_change_the_new_level_is_the_old_one() -> None:
    detector = JumpDetector(0.05, history=5, recent=2, significance=3.0)
    level = [0.8, 0.81, 0.79, 0.8, 0.81]
    found = changes(detector, level + [v - 0.3 for v in level] * 2 + level)
    assert len(found) == 2
    assert found[0] in (5, 6)
    assert found[1] in (15, 16)


# Several numbers


@settings(max_examples=40, deadline=None)
@given(values=st.lists(HUNDREDTHS, max_size=30), split=st.integers(0, 30), significance=st.sampled_from([0.0, 1.0]))
def test_the_state_is_all_that_the_next_decision_needs(values: list[float], split: int, significance: float) -> None:
    first, other = (JumpDetector(0.1, 3, 2, significance) for _ in range(2))
    changes(first, values[:split])
    other.set_extra_state(json.loads(json.dumps(first.get_extra_state())))
    assert changes(other, values[split:]) == changes(first, values[split:])
    assert other.get_extra_state() == first.get_extra_state()
