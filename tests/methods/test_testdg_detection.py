"""Section 3.1: a jump of the confidence is a new domain."""

import json
from collections.abc import Iterable

from hypothesis import example, given, settings
from hypothesis import strategies as st

from testdg.methods.testdg.memory import ChangeDetector
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
