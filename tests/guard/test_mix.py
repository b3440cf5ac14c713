"""The mix of classes that a guard watches."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from testdg import Preprocessing, adapt, guard, load_model
from testdg.core.guard.mix import LEAST_SEEN, Mix, kinds, spread


def test_kinds_of_worked_cases() -> None:
    assert kinds([4] * 7) == pytest.approx(1)
    assert kinds([0, 1, 2, 3] * 5) == pytest.approx(4)
    assert kinds([0, 0, 0, 1]) == pytest.approx(math.exp(0.75 * math.log(4 / 3) + 0.25 * math.log(4)))


@given(st.lists(st.integers(0, 9), min_size=1, max_size=80))
def test_spread_is_between_one_class_and_all(found: list[int]) -> None:
    assert -1e-9 <= spread(found, 10) <= 1 + 1e-9
    assert spread(found, 10) == pytest.approx(spread(sorted(found, reverse=True), 10))


def test_after_one_class_two_are_no_mix_yet() -> None:
    mix, three = Mix(10), [0, 1, 2] * 20
    mix.add_classes(three)
    assert not mix.check()
    mix.add_classes([0] * 60)
    assert mix.check()
    mix.add_classes(three)
    assert mix.check()
    mix.add_classes(list(range(5)) * 12)
    assert not mix.check()


def test_few_predictions_say_nothing() -> None:
    mix = Mix(10)
    mix.add_classes([1] * (LEAST_SEEN - 1))
    assert not mix.known
    mix.add_classes([1])
    assert mix.known


class Sides(nn.Module):
    """Four classes by the mean colour of a quarter; a bias can make it see one class everywhere."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.head = nn.LayerNorm(4), nn.Linear(4, 4)
        with torch.no_grad():
            self.head.weight.copy_(10 * torch.eye(4))
            self.head.bias.zero_()

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        quarters = nn.functional.adaptive_avg_pool2d(images.mean(1, keepdim=True), 2).flatten(1)
        return self.head(self.norm(quarters))  # type: ignore[no-any-return]


def pictures(classes: torch.Tensor) -> torch.Tensor:
    """Soft waves, brighter in the quarter of the class; no two are alike."""
    place = torch.arange(16.0)
    down, along = 6 * torch.rand(2, len(classes), 3, 1, 1, generator=torch.Generator().manual_seed(len(classes)))
    images = 0.3 + 0.2 * torch.sin(place[:, None] / 3 + down) * torch.cos(place / 4 + along)
    for image, label in zip(images, classes.tolist(), strict=True):
        image[:, 8 * (label // 2) :, 8 * (label % 2) :][:, :8, :8] += 0.3
    return images.clamp(0, 1)


@pytest.mark.parametrize(("classes", "learns"), [([0, 1, 2, 3] * 10, True), ([2] * 40, False)])
def test_the_source_says_whether_it_is_the_stream(classes: list[int], learns: bool) -> None:
    model = load_model(Sides(), preprocessing=Preprocessing((16, 16), mean=(0.0,) * 3, std=(1.0,) * 3))
    adapter = guard(adapt(model, "tent", learning_rate=1e-9), pictures(torch.arange(100) % 4))
    images = pictures(torch.tensor(classes))
    adapter(images[:20])
    adapter.mix.window = [2] * 60  # what a model says that sees one class everywhere
    adapter(images[20:])
    assert adapter.learnt == learns
    assert ("of 1.0 classes" in adapter.decision) != learns
