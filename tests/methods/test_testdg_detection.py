"""Section 3.1: a jump of the confidence, or of how the images look, is a new domain."""

import json
import math
import random
from collections.abc import Iterable

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor

from testdg.data.benchmarks import load_benchmark
from testdg.methods.testdg.detection import ChangeDetector, appearance

Row = tuple[float, ...]


def noticed(detector: ChangeDetector, rows: Iterable[Row]) -> list[int]:
    return [k for k, row in enumerate(rows) if detector.update(*row)]


def changes(detector: ChangeDetector, confidences: Iterable[float]) -> list[int]:
    return noticed(detector, ((confidence,) for confidence in confidences))


def literal(rows: list[Row], threshold: float, history: int) -> list[int]:
    """Compare each row with those before it, no farther back than `history` rows or the last change."""
    found: list[int] = []
    for k, row in enumerate(rows):
        first = max([0, k - history, *found[-1:]])
        gaps = [abs(a - b) for other in rows[first:k] for a, b in zip(row, other, strict=True)]
        if max(gaps, default=0) > threshold:
            found.append(k)
    return found


def rows_of(value: st.SearchStrategy[float], widest: int) -> st.SearchStrategy[list[Row]]:
    """Streams of one number or more."""
    return st.integers(1, widest).flatmap(lambda width: st.lists(st.tuples(*[value] * width), max_size=30))


HUNDREDTHS = st.integers(0, 100).map(lambda value: value / 100)


@settings(max_examples=100, deadline=None)
@given(
    rows=rows_of(HUNDREDTHS, 3),
    threshold=st.sampled_from([0.02, 0.105, 0.2, 0.4, 0.8]),
    history=st.integers(1, 4),
)
def test_changes_are_those_of_the_definition(rows: list[Row], threshold: float, history: int) -> None:
    assert noticed(ChangeDetector(threshold, history), rows) == literal(rows, threshold, history)


def test_only_a_jump_above_the_threshold_is_a_change() -> None:
    assert changes(ChangeDetector(0.25), [0.5, 0.75, 0.5, 0.25]) == []
    assert changes(ChangeDetector(0.25), [0.5, 0.76]) == [1]
    assert changes(ChangeDetector(0.25), [0.5, 0.24]) == [1]
    assert changes(ChangeDetector(0.0), [0.5, 0.5, 0.6]) == [2]


def test_the_first_batch_is_no_change() -> None:
    for significance in (0.0, 3.0):
        assert not ChangeDetector(0.0, 2, 1, significance).update(0.9)


def test_two_batches_of_history_see_a_slide_that_one_does_not() -> None:
    slide = [0.8, 0.8, 0.74, 0.68]
    assert changes(ChangeDetector(0.1, history=1), slide) == []
    assert changes(ChangeDetector(0.1, history=2), slide) == [3]


@pytest.mark.parametrize("history", [1, 2, 3])
def test_one_shift_is_one_change(history: int) -> None:
    # With two batches of history the old level is still in reach of the batch after the change.
    assert changes(ChangeDetector(0.1, history), [0.8] * 4 + [0.5] * 5 + [0.9] * 5) == [4, 9]


def test_noise_is_not_significant_and_a_shift_is() -> None:
    draw = random.Random(0)
    calm = [draw.betavariate(4, 1) for _ in range(1000)]  # single images: mean 0.8, standard deviation 0.16
    shifted = [draw.betavariate(2, 2) for _ in range(300)]  # mean 0.5
    assert len(changes(ChangeDetector(0.1), calm)) > 300
    detector = ChangeDetector(0.1, history=100, recent=30, significance=5.0)
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
def test_significance_is_that_of_the_two_sample_t_test(old: list[int], new: list[int], significance: float) -> None:
    values = [value / 100 for value in [*old, *new]]
    first, second = np.array(values[: len(old)]), np.array(values[len(old) :])
    pooled = (first.var() * len(first) + second.var() * len(second)) / (len(values) - 2)
    gap = abs(first.mean() - second.mean())
    bar = max(0.05, significance * np.sqrt(pooled * (1 / len(first) + 1 / len(second))))
    assume(abs(gap - bar) > 1e-9)
    detector = ChangeDetector(0.05, len(old), len(new), significance)
    detector.past = [(value,) for value in values[:-1]]
    assert detector.update(values[-1]) == (gap > bar)


def test_after_a_change_the_new_level_is_the_old_one() -> None:
    detector = ChangeDetector(0.05, history=5, recent=2, significance=3.0)
    level = [0.8, 0.81, 0.79, 0.8, 0.81]
    found = changes(detector, level + [v - 0.3 for v in level] * 2 + level)
    assert len(found) == 2
    assert found[0] in (5, 6)
    assert found[1] in (15, 16)
    assert detector.count == 20 - found[1]


# Several numbers


@pytest.mark.parametrize("place", [0, 1, 2])
@pytest.mark.parametrize("jump", [0.3, -0.3])
def test_one_number_that_jumps_is_enough(place: int, jump: float) -> None:
    before = (0.5, 2.0, -1.0)
    after = tuple(value + jump * (k == place) for k, value in enumerate(before))
    assert noticed(ChangeDetector(0.25), [before] * 4 + [after] * 4) == [4]
    detector = ChangeDetector(0.25, history=10, recent=3, significance=7.0)
    assert noticed(detector, [before] * 8 + [after] * 8) == [10]  # once all that is recent is new
    assert detector.count == 6


@settings(max_examples=60, deadline=None)
@given(
    rows=rows_of(HUNDREDTHS, 3),
    threshold=st.sampled_from([0.105, 0.3, 0.6]),
    significance=st.sampled_from([0.0, 1.5, 3.0]),
)
def test_the_first_change_is_the_first_of_any_number(rows: list[Row], threshold: float, significance: float) -> None:
    shape = (threshold, 4, 2, significance)
    alone = [changes(ChangeDetector(*shape), column) for column in zip(*rows, strict=True)]
    assert noticed(ChangeDetector(*shape), rows)[:1] == sorted(k for one in alone for k in one[:1])[:1]


@settings(max_examples=60, deadline=None)
@given(
    confidences=st.lists(st.floats(0, 1), max_size=30),
    copies=st.integers(1, 3),
    significance=st.sampled_from([0.0, 2.0]),
)
def test_copies_and_numbers_that_stay_add_nothing(confidences: list[float], copies: int, significance: float) -> None:
    one, several = (ChangeDetector(0.2, 3, 2, significance) for _ in range(2))
    assert changes(one, confidences) == noticed(several, [(0.7, *[value] * copies, -3.0) for value in confidences])
    assert one.count == several.count


@settings(max_examples=40, deadline=None)
@given(
    rows=rows_of(st.floats(-9, 1), 4),
    split=st.integers(0, 30),
    significance=st.sampled_from([0.0, 1.0]),
)
def test_the_state_is_all_that_the_next_decision_needs(rows: list[Row], split: int, significance: float) -> None:
    first, other = (ChangeDetector(0.1, 3, 2, significance) for _ in range(2))
    noticed(first, rows[:split])
    other.set_extra_state(json.loads(json.dumps(first.get_extra_state())))
    assert noticed(other, rows[split:]) == noticed(first, rows[split:])
    assert other.count == first.count
    assert other.get_extra_state() == first.get_extra_state()


# How images look


@st.composite
def textures(draw: st.DrawFn) -> Tensor:
    """Batches of grainy images in [0.2, 0.8]."""
    images, channels = draw(st.integers(1, 4)), draw(st.sampled_from([1, 3]))
    height, width = draw(st.integers(4, 12)), draw(st.integers(4, 12))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 10**6)))
    return 0.2 + 0.6 * torch.rand(images, channels, height, width, generator=generator)


def close(found: Tensor, expected: Tensor, atol: float = 1e-5) -> None:
    torch.testing.assert_close(found, expected, rtol=0, atol=atol)


def test_stripes_by_hand() -> None:
    stripes = torch.tensor([0.25, 0.75, 0.25, 0.75]).expand(2, 1, 4, 4)
    spread = (16 * 0.25**2 / 15) ** 0.5
    # neighbours across differ by 0.5 and those below by nothing; the slope turns from 0.5 to -0.5
    close(appearance(stripes), torch.tensor([0.5, math.log(spread), math.log(0.5), math.log(1.0)]))


@settings(max_examples=40, deadline=None)
@given(images=textures())
def test_appearance_is_that_of_numpy(images: Tensor) -> None:
    pixels = images.double().numpy()
    across, down = np.abs(np.diff(pixels, axis=3)), np.abs(np.diff(pixels, axis=2))
    bend = np.abs(pixels[..., 2:] - 2 * pixels[..., 1:-1] + pixels[..., :-2])
    amounts = [
        np.std(pixels, axis=(2, 3), ddof=1),
        across.mean(axis=(2, 3)) + down.mean(axis=(2, 3)),
        bend.mean(axis=(2, 3)),
    ]
    expected = [pixels.mean(axis=(0, 2, 3)), *(np.log(amount).mean(axis=0) for amount in amounts)]
    close(appearance(images).double(), torch.from_numpy(np.concatenate(expected)))


@settings(max_examples=40, deadline=None)
@given(images=textures(), shift=st.floats(-0.2, 0.2))
def test_a_shift_moves_the_brightness_and_nothing_else(images: Tensor, shift: float) -> None:
    channels = images.shape[1]
    moves = appearance(images + shift) - appearance(images)
    close(moves, torch.tensor([shift] * channels + [0.0] * 3 * channels))


@settings(max_examples=40, deadline=None)
@given(images=textures(), factor=st.floats(0.05, 1.6))
def test_contrast_moves_the_logarithms_by_its_own(images: Tensor, factor: float) -> None:
    channels = images.shape[1]
    plain, scaled = appearance(images), appearance(0.5 + factor * (images - 0.5))
    close(scaled[:channels] - 0.5, factor * (plain[:channels] - 0.5))
    close(scaled[channels:] - plain[channels:], torch.full((3 * channels,), math.log(factor)), atol=1e-4)


@settings(max_examples=40, deadline=None)
@given(images=textures(), data=st.data())
def test_neither_mirrors_nor_the_order_of_images_matter(images: Tensor, data: st.DataObject) -> None:
    order = data.draw(st.permutations(range(len(images))))
    for same in (images.flip(3), images.flip(2), images[order]):
        close(appearance(same), appearance(images))


@pytest.mark.parametrize("value", [0.0, 0.5, 1.0])
def test_images_of_one_colour_look_like_something(value: float) -> None:
    found = appearance(torch.full((2, 3, 8, 8), value))
    assert found[:3].tolist() == [value] * 3
    close(found[3:], torch.full((9,), math.log(1e-5)))


def test_appearance_is_exact_whatever_the_precision() -> None:
    images = torch.rand(4, 3, 16, 16, generator=torch.Generator().manual_seed(0)).bfloat16()
    expected = appearance(images.float())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(appearance(images), expected)
        assert torch.equal(appearance(images.float()), expected)
    assert expected.dtype == torch.float32


@pytest.mark.parametrize("size", [20, 40])
def test_new_corruptions_are_noticed_by_their_looks(size: int) -> None:
    """There is no model here, and so no confidence."""
    benchmark = load_benchmark("digits-c", images=200)
    detector = ChangeDetector(0.05, history=10, recent=3, significance=7.0)
    looks = [tuple(appearance(batch.images).tolist()) for batch in benchmark.stream(batch_size=size)]
    length = 200 // size
    assert len(looks) == 15 * length
    found = noticed(detector, looks)
    in_time = {k // length for k in found if k >= length and k % length < detector.recent}
    assert len(in_time) >= 13  # of 14 changes
    assert len(found) - len(in_time) <= 1
