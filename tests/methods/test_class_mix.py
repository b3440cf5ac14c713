"""The class mix of a stream: the estimate, when it shifts predictions, and which predictions it shifts."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from support.networks import segformer
from testdg import adapt
from testdg.methods import Adapter
from testdg.methods.parts.class_mix import ClassMix
from testdg.models import Preprocessing, TinyViT, VisionModel, load_model
from testdg.testing import same_state, stream

CPU = torch.device("cpu")
STEPS = ["align", "testdg_aligned"]


# The formulas


class Restated:
    """The class mix by its formulas, image by image and class by class, in double precision."""

    def __init__(self, classes: int) -> None:
        self.usual = [1 / classes] * classes
        self.images: list[list[float]] = []

    def follow(self, logits: Tensor) -> tuple[list[list[float]], float]:
        """Shifts of a batch, image by image, and the gate."""
        batch = [probabilities(row) for row in logits.tolist()]
        n, classes = len(batch), range(len(self.usual))
        self.usual = [(1600 * self.usual[c] + sum(p[c] for p in batch)) / (1600 + n) for c in classes]
        before = [] if n >= 80 else self.images[n - 80 :]
        weights = [math.exp(-age / 20) for age in range(len(before), 0, -1)] + [1.0] * n
        shifts, gate = self._shifts(before + batch, weights, n)
        self.images = (before + batch)[-80:]
        return shifts, gate

    def next_image(self) -> list[float]:
        """The shift of an image that has not come yet."""
        count = len(self.images)
        weights = [math.exp(-max(0, age - 39) / 20) for age in range(count - 1, -1, -1)]
        return self._shifts(self.images, weights, 0)[0][0]

    def _shifts(self, rows: list[list[float]], weights: list[float], n: int) -> tuple[list[list[float]], float]:
        classes = range(len(self.usual))
        u = [max(share, 0.01 / len(self.usual)) for share in self.usual]
        u = [share / sum(u) for share in u]
        others = [self._mix(rows[:i] + rows[i + 1 :], weights[:i] + weights[i + 1 :], u) for i in range(len(rows))]
        gains = [math.log(sum(p[c] * mix[c] / u[c] for c in classes)) for p, mix in zip(rows, others, strict=True)]
        gain = sum(w * one for w, one in zip(weights, gains, strict=True)) / sum(weights)
        margin = 0.2 * (1 + (20 / sum(weights)) ** 3)
        gate = min(1.0, max(0.0, gain / margin - 1)) if len(rows) >= 40 else 0.0
        shown = others[-n:] if n else [self._mix(rows, weights, u)]
        return [[gate * 2.5 * math.log(min(mix[c] / u[c], 10)) for c in classes] for mix in shown], gate

    @staticmethod
    def _mix(rows: list[list[float]], weights: list[float], u: list[float]) -> list[float]:
        q = u
        for _ in range(5):
            parts = [explained(p, q, u) for p in rows]
            sums = [sum(w * part[c] for w, part in zip(weights, parts, strict=True)) for c in range(len(u))]
            q = [(sums[c] + 5 * u[c]) / (sum(weights) + 5) for c in range(len(u))]
        return q


def probabilities(logits: list[float]) -> list[float]:
    """Softmax at temperature 2.5."""
    parts = [math.exp((value - max(logits)) / 2.5) for value in logits]
    return [part / sum(parts) for part in parts]


def explained(p: list[float], q: list[float], u: list[float]) -> list[float]:
    """Which classes an image is of, where their mix is q."""
    parts = [one * new / old for one, new, old in zip(p, q, u, strict=True)]
    return [part / sum(parts) for part in parts]


def noisy(labels: Tensor, classes: int, seed: int, sure: float = 4.0, noise: float = 2.0) -> Tensor:
    """Logits that are mostly right."""
    logits = noise * torch.randn(len(labels), classes, generator=torch.Generator().manual_seed(seed))
    logits[torch.arange(len(labels)), labels] += sure
    return logits


def runs(sizes: list[int], classes: int, seed: int) -> list[Tensor]:
    """Batches of a stream in which about sixty images of one class follow each other."""
    total = sum(sizes)
    labels = (torch.arange(total) // 60 + seed) % classes
    return list(noisy(labels, classes, seed).split(sizes))


@pytest.mark.parametrize(
    ("classes", "sizes"),
    [
        (10, [40] * 6),
        (10, [7, 1, 50, 20, 3, 12, 40, 1, 1, 1]),
        (10, [30, 200, 80, 79, 81, 5]),
        (2, [20] * 12),
        (100, [20] * 3),
        (5, [1] * 60),
    ],
)
def test_shifts_follow_the_formulas(classes: int, sizes: list[int]) -> None:
    mix, plain, gates = ClassMix(classes, CPU), Restated(classes), []
    for logits in runs(sizes, classes, seed=1):
        found, gate = mix.follow(logits)
        shifts, expected = plain.follow(logits)
        torch.testing.assert_close(found - logits, torch.tensor(shifts), rtol=1e-3, atol=1e-4)
        assert float(gate) == pytest.approx(expected, abs=1e-4)
        torch.testing.assert_close(mix.usual, torch.tensor(plain.usual), rtol=1e-4, atol=1e-7)
        torch.testing.assert_close(mix.window[80 - len(plain.images) :], torch.tensor(plain.images))
        assert int(mix.filled) == len(plain.images)
        gates.append(expected)
        torch.testing.assert_close(mix.shift(), torch.tensor(plain.next_image()), rtol=1e-3, atol=1e-4)
    assert max(gates) > 0.1  # else only the gate would have been compared


def test_a_rare_class_has_a_least_share() -> None:
    mix, plain = ClassMix(3, CPU), Restated(3)
    mix.usual.copy_(torch.tensor([0.9999, 1e-6, 1e-4 - 1e-6]))
    plain.usual = mix.usual.tolist()
    logits = noisy(torch.full((40,), 1), 3, seed=0)
    found, gate = mix.follow(logits)
    shifts, expected = plain.follow(logits)
    assert float(gate) == pytest.approx(expected, abs=1e-4) == 1
    torch.testing.assert_close(found - logits, torch.tensor(shifts), rtol=1e-3, atol=1e-3)


# Which streams it shifts


@pytest.mark.parametrize("size", [10, 40, 200])
@pytest.mark.parametrize("classes", [2, 10, 100, 1000])
@pytest.mark.parametrize("sure", [1.0, 4.0, 8.0])
def test_a_shuffled_stream_is_left_alone(classes: int, size: int, sure: float) -> None:
    labels = torch.randint(classes, (1200,), generator=torch.Generator().manual_seed(classes))
    mix = ClassMix(classes, CPU)
    for logits in noisy(labels, classes, seed=size, sure=sure).split(size):
        found, gate = mix.follow(logits)
        assert torch.equal(found, logits)
        assert float(gate) == 0
        assert not mix.shift().any()


@pytest.mark.parametrize(("classes", "images", "share"), [(2, 1200, 0.75), (10, 3000, 0.2), (100, 3000, 0.5)])
@pytest.mark.parametrize("size", [10, 40])
def test_a_stream_sorted_by_class_is_predicted_better(classes: int, images: int, share: float, size: int) -> None:
    labels = torch.arange(images) * classes // images
    logits, mix = noisy(labels, classes, seed=3), ClassMix(classes, CPU)
    found = torch.cat([mix.follow(part)[0] for part in logits.split(size)])
    errors = [float((one.argmax(1) != labels).float().mean()) for one in (logits, found)]
    assert errors[0] > 0.05
    assert errors[1] <= share * errors[0] + 1e-9 if size == 40 else errors[1] < errors[0]


@pytest.mark.parametrize("size", [1, 13, 39])
def test_fewer_than_forty_images_shift_nothing(size: int) -> None:
    mix = ClassMix(10, CPU)
    logits = noisy(torch.full((80,), 4), 10, seed=0, sure=8.0)
    for part in logits[:39].split(size):
        found, gate = mix.follow(part)
        assert torch.equal(found, part)
        assert float(gate) == 0
    assert not mix.shift().any()
    found, gate = mix.follow(logits[39:])
    assert float(gate) == 1
    assert bool((found[:, 4] > logits[39:, 4]).all())


# In a method


def vit(classes: int = 10) -> VisionModel:
    torch.manual_seed(0)
    network = TinyViT(classes, width=32, depth=2, patch=8)
    with torch.no_grad():
        network.head.weight.mul_(40)
    return load_model(network, preprocessing=Preprocessing((32, 32), mean=(0.5,) * 3, std=(0.5,) * 3))


def made(model: VisionModel, method: str = "align", **settings: Any) -> Adapter:
    adapter = adapt(model, method, threshold=1e9, **settings)
    if adapter.awaits_source:
        adapter.warm_up(stream(adapter, 8, 20, seed=1)[:4])
    return adapter


def bunched(adapter: Adapter, batches: int, size: int = 20) -> list[Tensor]:
    """A stream of images that are all alike."""
    image = stream(adapter, 2, 1)[0]
    generator = torch.Generator().manual_seed(0)
    return [(image + 0.02 * torch.randn(size, *image.shape[1:], generator=generator)).clamp(0, 1)] * batches


@pytest.mark.parametrize("method", STEPS)
def test_a_stream_is_shifted_and_a_prediction_is_not(method: str) -> None:
    shifted, plain = made(vit(), method), made(vit(), method, class_mix=False)
    assert plain.stream_shift() is None
    mix, gates = Restated(10), []
    for images in bunched(shifted, 5):
        found, expected = shifted(images), plain(images)
        shifts, gate = mix.follow(expected)
        torch.testing.assert_close(found, expected + torch.tensor(shifts), rtol=1e-3, atol=1e-3)
        assert float(shifted.diagnostics["bunched"]) == pytest.approx(gate, abs=1e-3)
        assert "bunched" not in plain.diagnostics
        assert torch.equal(shifted.predict(images), plain.predict(images))
        gates.append(gate)
    assert gates[0] == 0
    assert gates[-1] > 0.5
    shift = shifted.stream_shift()
    assert shift is not None
    torch.testing.assert_close(shift, torch.tensor(mix.next_image()), rtol=1e-3, atol=1e-3)


def test_a_step_that_fails_is_not_counted() -> None:
    adapter, twin = made(vit()), made(vit())
    images = bunched(adapter, 1)[0]
    adapter(images), twin(images)
    mix = adapter.class_mix  # type: ignore[attr-defined]
    follow = mix.follow
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mix, "follow", lambda logits: (follow(logits), 1 / 0))
        with pytest.raises(ZeroDivisionError):
            adapter(0.5 * images)
    assert same_state(adapter, twin) is None


@pytest.mark.parametrize("classes", [1, 2, 3])
@pytest.mark.parametrize("method", STEPS)
def test_models_of_few_classes(method: str, classes: int) -> None:
    adapter = made(vit(classes), method)
    for images in bunched(adapter, 4):
        assert bool(adapter(images).isfinite().all())
    assert (adapter.stream_shift() is None) == (classes == 1)


@pytest.mark.parametrize("method", STEPS)
def test_maps_have_no_class_mix(method: str) -> None:
    adapter = made(segformer(), method, gather=4) if method != "align" else made(segformer(), method)
    for images in bunched(adapter, 3):
        adapter(images)
    assert adapter.stream_shift() is None
    assert "bunched" not in adapter.diagnostics
    assert not any("class_mix" in name for name in adapter.tensors())


def test_under_autocast_the_mix_is_in_full_precision() -> None:
    shifted, plain = (made(vit(), precision="bf16", class_mix=on) for on in (True, False))
    mix = Restated(10)
    for images in bunched(shifted, 4):
        found, expected = shifted(images), plain(images)
        shifts, _ = mix.follow(expected)
        assert found.dtype == torch.float32
        torch.testing.assert_close(found, expected + torch.tensor(shifts), rtol=1e-4, atol=1e-4)


def test_predictions_that_are_not_finite_leave_no_trace() -> None:
    mix = ClassMix(10, torch.device("cpu"))
    logits = torch.randn(50, 10, generator=torch.Generator().manual_seed(0))
    logits[3, 2], logits[7] = float("nan"), float("inf")
    mix.follow(logits)
    shifted, _ = mix.follow(logits[10:])
    assert bool(shifted.isfinite().all())
    assert all(bool(value.isfinite().all()) for value in mix.state_dict().values())
