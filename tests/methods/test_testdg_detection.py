"""Section 3.1: a jump of the confidence is a new domain."""

import json
from collections.abc import Iterable

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from testdg.methods.testdg.detection import ChangeDetector
from testdg.methods.testdg.released import LateDetector

HUNDREDTHS = st.lists(st.integers(0, 100).map(lambda value: value / 100), max_size=30)
THRESHOLDS = st.sampled_from([0.02, 0.105, 0.2, 0.4, 0.8])


def changes(detector: ChangeDetector, confidences: Iterable[float]) -> list[int]:
    return [k for k, confidence in enumerate(confidences) if detector.update(confidence)]


@settings(max_examples=100, deadline=None)
@given(confidences=HUNDREDTHS, threshold=THRESHOLDS)
def test_changes_of_the_text_are_gaps_between_neighbours(confidences: list[float], threshold: float) -> None:
    expected = [k for k in range(1, len(confidences)) if abs(confidences[k] - confidences[k - 1]) > threshold]
    assert changes(ChangeDetector(threshold), confidences) == expected


@settings(max_examples=100, deadline=None)
@given(confidences=HUNDREDTHS, threshold=THRESHOLDS)
def test_changes_of_the_code_are_the_larger_of_two_gaps_one_batch_late(
    confidences: list[float], threshold: float
) -> None:
    """The third batch is the first that is compared, and the fourth the first that may be a change."""
    expected = []
    for k in range(3, len(confidences)):
        first, second, last = confidences[k - 3 : k]
        if max(abs(last - first), abs(last - second)) > threshold:
            expected.append(k)
    assert changes(LateDetector(threshold), confidences) == expected


def test_only_a_jump_above_the_threshold_is_a_change() -> None:
    assert changes(ChangeDetector(0.25), [0.5, 0.75, 0.5, 0.25]) == []
    assert changes(ChangeDetector(0.25), [0.5, 0.76]) == [1]
    assert changes(ChangeDetector(0.25), [0.5, 0.24]) == [1]
    assert changes(ChangeDetector(0.0), [0.5, 0.5, 0.6]) == [2]


def test_the_first_batch_is_no_change() -> None:
    for detector in (ChangeDetector(0.0), LateDetector(0.0)):
        assert not detector.update(0.9)


@pytest.mark.parametrize("level", [0.5, 0.9])
def test_one_jump_is_one_change_of_the_text_and_two_of_the_code(level: float) -> None:
    confidences = [0.7] * 4 + [level] * 5
    assert changes(ChangeDetector(0.1), confidences) == [4]
    assert changes(LateDetector(0.1), confidences) == [5, 6]


def test_the_code_sees_a_slide_that_the_text_does_not() -> None:
    slide = [0.8, 0.8, 0.74, 0.68, 0.68]
    assert changes(ChangeDetector(0.1), slide) == []
    assert changes(LateDetector(0.1), slide) == [4]


@settings(max_examples=40, deadline=None)
@given(confidences=HUNDREDTHS, split=st.integers(0, 30), kind=st.sampled_from([ChangeDetector, LateDetector]))
@example(confidences=[0.5, 0.5, 0.9, 0.9], split=3, kind=LateDetector)  # found before the split, acted on after it
def test_the_state_is_all_that_the_next_decision_needs(
    confidences: list[float], split: int, kind: type[ChangeDetector]
) -> None:
    first, other = (kind(0.1) for _ in range(2))
    changes(first, confidences[:split])
    other.set_extra_state(json.loads(json.dumps(first.get_extra_state())))
    assert changes(other, confidences[split:]) == changes(first, confidences[split:])
    assert other.get_extra_state() == first.get_extra_state()
