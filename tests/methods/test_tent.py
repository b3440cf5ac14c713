"""TENT: the entropy, its gradient, and what moves."""

import math

import pytest
import torch
from torch import Tensor, nn

from support.errors import refused
from testdg.methods.parts.entropy import entropy
from testdg.methods.tent import Tent
from testdg.models import Preprocessing, VisionModel, load_model
from testdg.testing import stream


def gradient(logits: Tensor) -> Tensor:
    logits = logits.clone().requires_grad_(True)
    (found,) = torch.autograd.grad(entropy(logits).mean(), logits)
    return found


def test_entropy_is_the_formula() -> None:
    logits = torch.randn(4, 5, generator=torch.Generator().manual_seed(0))
    for row, found in zip(logits.double().tolist(), entropy(logits).tolist(), strict=True):
        total = sum(math.exp(value) for value in row)
        expected = -sum(math.exp(value) / total * math.log(math.exp(value) / total) for value in row)
        assert found == pytest.approx(expected, rel=1e-5)


def test_uniform_predictions_give_no_gradient() -> None:
    assert float(entropy(torch.full((1, 10), 3.0))) == pytest.approx(math.log(10), rel=1e-6)
    assert gradient(torch.full((4, 10), 3.0)).abs().max() < 1e-7


def test_of_two_classes_the_larger_grows_and_the_smaller_shrinks() -> None:
    found = gradient(torch.tensor([[1.0, 0.5], [-2.0, 0.0]]))
    assert found[0, 0] < 0 < found[0, 1]
    assert found[1, 1] < 0 < found[1, 0]
    # d H / d z_1 = -p_1 p_2 (z_1 - z_2), here for the mean of two images
    p = torch.tensor([1.0, 0.5]).softmax(0)
    assert float(found[0, 0]) == pytest.approx(float(-p[0] * p[1] * 0.5 / 2), rel=1e-5)


def two_classes() -> VisionModel:
    """Pixels, GroupNorm with scale and shift, and a head that compares the mean of the first two channels."""
    norm, head = nn.GroupNorm(1, 3), nn.Linear(3, 2, bias=False)
    with torch.no_grad():
        head.weight.copy_(torch.eye(3)[:2])
    network = nn.Sequential(norm, nn.AdaptiveAvgPool2d(1), nn.Flatten(), head)
    return load_model(network, preprocessing=Preprocessing((4, 4)), name="two-classes")


@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
@pytest.mark.parametrize("larger", [0, 1])
def test_a_step_widens_the_gap_between_two_classes(larger: int, optimizer: str) -> None:
    images = torch.full((4, 3, 4, 4), 0.3)
    images[:, larger] = 0.8
    adapter = Tent(two_classes(), learning_rate=0.01, optimizer=optimizer)
    first = adapter(images)
    second = adapter.predict(images)
    assert bool((second[:, larger] > first[:, larger]).all())
    assert bool((second[:, 1 - larger] < first[:, 1 - larger]).all())
    assert float(entropy(second).mean()) < float(entropy(first).mean())


@pytest.mark.parametrize("kind", ["vit", "cnn"])
def test_only_scale_and_shift_of_normalisation_layers_move(kind: str, request: pytest.FixtureRequest) -> None:
    model: VisionModel = request.getfixturevalue(kind)
    adapter = Tent(model, learning_rate=1e-2)
    before = {name: value.clone() for name, value in adapter.model.state_dict().items()}
    for images in stream(adapter):
        adapter(images)
    moved = {name for name, value in adapter.model.state_dict().items() if not torch.equal(value, before[name])}
    layers = {"vit": 5, "cnn": 3}[kind]
    norms = {f"{name}.{part}" for name, _ in model.norm_layers() for part in ("weight", "bias")}
    assert len(norms) == 2 * layers
    assert moved == norms


def test_the_prediction_is_the_one_before_the_update(vit: VisionModel) -> None:
    adapter = Tent(vit, learning_rate=1e-2)
    images = stream(adapter, 1)[0]
    with torch.no_grad():
        expected = vit(vit.prepare(images)).logits
    torch.testing.assert_close(adapter(images), expected)
    assert not torch.allclose(adapter.predict(images), expected, atol=1e-3)


def test_two_steps_are_two_updates(vit: VisionModel) -> None:
    one, two = Tent(vit, learning_rate=1e-2), Tent(vit, learning_rate=1e-2, steps=2)
    images = stream(one, 1)[0]
    one(images)
    torch.testing.assert_close(two(images), one(images))
    torch.testing.assert_close(two.predict(images), one.predict(images))


def test_batch_norm_uses_the_batch_unless_told_otherwise(cnn: VisionModel) -> None:
    images = stream(Tent(cnn), 1)[0]
    stored = Tent(cnn, batch_statistics=False, learning_rate=0.0)
    with torch.no_grad():
        source = cnn(cnn.prepare(images)).logits
    torch.testing.assert_close(stored(images), source)
    adapter = Tent(cnn, learning_rate=0.0)
    of_batch = adapter(images)
    assert not torch.allclose(of_batch, source, atol=1e-2)
    cnn.train()
    with torch.no_grad():
        torch.testing.assert_close(of_batch, cnn(cnn.prepare(images)).logits)
    assert not torch.allclose(adapter.predict(images[:3]), of_batch[:3], atol=1e-3)


def test_number_of_values_that_move_in_vit_base(vit_base: VisionModel) -> None:
    assert len(vit_base.norm_layers()) == 25
    adapter = Tent(vit_base)
    assert sum(p.numel() for p in adapter.trainable().values()) == 25 * 2 * 768 == 38_400


def test_a_model_without_normalisation_is_refused() -> None:
    plain = load_model(nn.Sequential(nn.Flatten(), nn.Linear(48, 3)), preprocessing=Preprocessing((4, 4)), name="flat")
    with refused("unsuitable-model"):
        Tent(plain)
