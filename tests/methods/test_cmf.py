"""CMF: the filter's numbers, and ROID where it trusts nothing."""

import pytest
import torch

from support.literal import same
from testdg.methods.cmf import CMF, MomentumFilter
from testdg.methods.roid import Roid
from testdg.models import VisionModel
from testdg.testing import stream

ONE = [torch.ones(1, dtype=torch.float64)]


@pytest.mark.parametrize(
    ("noise", "kept"),
    [
        (0.005, {1: 0.995, 2: 0.990172, 3: 0.985554, 4: 0.981178, 10: 0.960765, 50: 0.940068, 500: 0.939991}),
        (0.005 * 53_120 / 38_400, {500: 0.928300}),
        (0.005 * 17_952 / 38_400, {500: 0.961155}),
        (0.00025, {1000: 0.991285}),
        (0.05, {500: 0.89}),
        (2.0, {1: 0.89}),
    ],
)
def test_the_gains_are_the_worked_numbers(noise: float, kept: dict[int, float]) -> None:
    part = MomentumFilter(ONE, noise)
    found = {t: part.follow(ONE, ONE, 0.01) for t in range(1, 1001)}
    assert {t: found[t] for t in kept} == pytest.approx(kept, abs=1e-6)


def test_three_steps_are_the_worked_numbers() -> None:
    part, hidden, weights = MomentumFilter(ONE, 0.005), [], []
    for value in (1.10, 1.20, 1.15):
        observed = torch.full((1,), value, dtype=torch.float64)
        part.follow([observed], ONE, 0.01)
        hidden.append(float(part.hidden()[0]))
        weights.append(float(observed.lerp(part.hidden()[0], 0.01)))
    assert hidden == pytest.approx([1.00050000, 1.00245575, 1.00456295], abs=1e-8)
    assert weights == pytest.approx([1.09900500, 1.19802456, 1.14854563], abs=1e-8)


def test_without_noise_it_is_roid(vit: VisionModel) -> None:
    filtered, plain = CMF(vit, noise=0.0, learning_rate=1e-2), Roid(vit, learning_rate=1e-2)
    for images in stream(plain, 4, 12):
        assert torch.equal(filtered(images), plain(images))
    assert same(filtered.model, plain.model)


def test_it_comes_to_differ_from_roid(vit: VisionModel) -> None:
    filtered, plain = CMF(vit, noise=1.0, learning_rate=1e-1), Roid(vit, learning_rate=1e-1)
    predictions = [(filtered(images), plain(images)) for images in stream(plain, 4, 12)]
    assert torch.equal(*predictions[0])
    assert not torch.equal(*predictions[-1])
