"""CMF: the filter's numbers, and ROID where it trusts nothing."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from passes import counted

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


def test_the_variances_are_the_worked_numbers() -> None:
    part = MomentumFilter(ONE, 0.005)
    found = []
    for _ in range(4):
        part.follow(ONE, ONE, 0.01)
        found.append(part.variance)
    assert found == pytest.approx([0.004975, 0.009779, 0.014374, 0.018728], abs=1e-6)


def test_three_steps_are_the_worked_numbers() -> None:
    part, hidden, weights = MomentumFilter(ONE, 0.005), [], []
    for value in (1.10, 1.20, 1.15):
        observed = torch.full((1,), value, dtype=torch.float64)
        part.follow([observed], ONE, 0.01)
        hidden.append(float(part.hidden()[0]))
        weights.append(float(observed.lerp(part.hidden()[0], 0.01)))
    assert hidden == pytest.approx([1.00050000, 1.00245575, 1.00456295], abs=1e-8)
    assert weights == pytest.approx([1.09900500, 1.19802456, 1.14854563], abs=1e-8)


@settings(deadline=None, max_examples=50)
@given(st.floats(0, 1), st.floats(0, 0.9), st.lists(st.floats(-5, 5), min_size=1, max_size=10))
def test_the_hidden_model_stays_among_what_it_has_seen(noise: float, share: float, values: list[float]) -> None:
    part = MomentumFilter(ONE, noise)
    for k, value in enumerate(values, 1):
        kept = part.follow([torch.full((1,), value, dtype=torch.float64)], ONE, share)
        assert 0.89 <= kept <= 1
        seen = [1.0, *values[:k]]
        assert min(seen) - 1e-9 <= float(part.hidden()[0]) <= max(seen) + 1e-9


def test_without_noise_it_is_roid(vit: VisionModel) -> None:
    filtered, plain = CMF(vit, noise=0.0, learning_rate=1e-2), Roid(vit, learning_rate=1e-2)
    for images in stream(plain, 4, 12):
        assert torch.equal(filtered(images), plain(images))
    assert all(torch.equal(p, o) for p, o in zip(filtered.model.parameters(), plain.model.parameters(), strict=True))


def test_it_comes_to_differ_from_roid(vit: VisionModel) -> None:
    filtered, plain = CMF(vit, noise=1.0, learning_rate=1e-1), Roid(vit, learning_rate=1e-1)
    predictions = [(filtered(images), plain(images)) for images in stream(plain, 4, 12)]
    assert torch.equal(*predictions[0])
    assert not torch.equal(*predictions[-1])


def test_a_reset_begins_the_filter_anew(vit: VisionModel) -> None:
    adapter = CMF(vit, noise=0.005 * 38_400 / 320)  # the tiny ViT has 320 such values
    batches = stream(adapter)
    for images in batches:
        adapter(images)
    assert float(adapter.diagnostics["kept"]) < 0.99
    adapter.reset()
    adapter(batches[0])
    assert float(adapter.diagnostics["kept"]) == pytest.approx(0.995)


def test_a_step_costs_what_roid_costs(vit: VisionModel) -> None:
    adapter = CMF(vit)
    with counted(adapter) as counts:
        adapter(stream(adapter, 1)[0])
    assert counts == {"model": 12, "backward": 1}
