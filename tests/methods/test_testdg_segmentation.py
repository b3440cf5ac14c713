"""TestDG, TENT and Source on models that predict pixels."""

import math

import pytest
import torch
from map_cases import SEGMENTATION_CHECKS, any_size
from passes import segformer
from testdg_cases import make, second_domain
from torch import Tensor

from testdg.methods import find_method
from testdg.methods.source import Source
from testdg.methods.tent import Tent
from testdg.methods.testdg import TestDG
from testdg.methods.testdg.learning import domain_features, self_training_loss
from testdg.testing import check_adapter, stream

DENSE = {"grid": 2}


def maps(seed: int = 0) -> tuple[Tensor, Tensor]:
    """Logits of a student and a teacher, (2, 3, 4, 5)."""
    one, other = torch.randn(2, 2, 3, 4, 5, generator=torch.Generator().manual_seed(seed)).double()
    return one, other


def pixels(logits: Tensor) -> list[list[float]]:
    return logits.movedim(1, -1).flatten(0, -2).tolist()


def softmax(row: list[float]) -> list[float]:
    return [math.exp(value) / sum(map(math.exp, row)) for value in row]


@pytest.mark.parametrize("symmetric", [False, True])
def test_self_training_is_a_mean_over_pixels(symmetric: bool) -> None:
    student, teacher = maps()
    losses = []
    for row, label in zip(pixels(student), pixels(teacher), strict=True):
        p, q = softmax(row), softmax(label)
        forth = -sum(b * math.log(a) for a, b in zip(p, q, strict=True))
        back = -sum(a * math.log(b) for a, b in zip(p, q, strict=True))
        losses.append((forth + back) / 2 if symmetric else forth)
    found = self_training_loss(student, teacher, symmetric=symmetric)
    assert float(found) == pytest.approx(sum(losses) / len(losses), rel=1e-5)


def test_every_cell_of_the_grid_has_an_embedding() -> None:
    features = torch.arange(2 * 3 * 4 * 6, dtype=torch.float32).view(2, 3, 4, 6)
    cells = domain_features(features, 2)
    assert cells.shape == (8, 3)
    assert torch.equal(cells[1], features[0, :, :2, 3:].mean((1, 2)))  # first image, upper right
    adapter = make(segformer(), **DENSE)
    adapter(stream(adapter, 1, 3)[0])
    assert len(adapter.queue) == 3 * 4
    assert adapter.queue.content()[1].tolist() == [0] * 4 + [1] * 4 + [2] * 4


def test_the_detector_hears_the_mean_confidence_of_the_pixels() -> None:
    adapter = make(segformer(), **DENSE)
    images = stream(adapter, 1, 2)[0]
    with torch.no_grad():
        wanted = adapter.teacher(images).logits.softmax(1).amax(1).mean()
    adapter(images)
    assert adapter.diagnostics["confidence"] == pytest.approx(float(wanted), rel=1e-5)


def test_the_amplifier_is_in_the_attention_of_every_stage() -> None:
    adapter = make(segformer(), **DENSE)
    assert adapter.amplifier is not None
    names = [name for layers in adapter.amplifier.layers.values() for name in layers]
    assert sorted(names) == sorted(name for group in adapter.model.attention_linears() for name in group)
    assert len(names) == 4 * 4  # query, key, value and output of four blocks


def test_an_augmented_view_keeps_every_pixel_in_its_place() -> None:
    adapter = make(segformer(), **DENSE)
    images = torch.zeros(1, 3, 32, 32)
    images[:, :, :, 16:] = 1.0
    view = adapter.augment(images, adapter.generator)
    assert not torch.equal(view, images)
    left, right = view[..., :13], view[..., 19:]
    assert float(left.max()) < float(right.min())


def test_both_steps_learn_and_prototypes_follow() -> None:
    adapter, batches = second_domain(segformer(), **DENSE)
    before = {name: value.clone() for name, value in adapter.model.named_parameters()}
    adapter(next(batches))
    assert {"self_training_loss", "discrimination_loss", "invariance_loss", "prototype_drift"} <= set(
        adapter.diagnostics
    )
    assert any(not torch.equal(value, before[name]) for name, value in adapter.model.named_parameters())
    assert adapter.skipped == 0


def test_pictures_that_are_not_square_and_come_alone() -> None:
    adapter = make(any_size(), **DENSE)
    for seed in range(3):
        images = torch.rand(1, 3, 40, 72, generator=torch.Generator().manual_seed(seed))
        assert adapter(images).shape == (1, 5, 40, 72)
    assert adapter.predict(images).shape == (1, 5, 40, 72)


@pytest.mark.parametrize("check", SEGMENTATION_CHECKS)
@pytest.mark.parametrize("kind", [TestDG, Tent, Source])
def test_segmentation_keeps_the_laws(kind: type[TestDG | Tent | Source], check: str) -> None:
    model = segformer()
    options = {Tent: {"batch_statistics": False}, TestDG: DENSE}.get(kind, {})
    if kind is Tent and check == "learning rate 0 is the source":
        adapter, images = Tent(model, learning_rate=0.0, **options), stream(Source(model), 1)[0]
        assert torch.equal(adapter(images), Source(model)(images))
        return
    assert check_adapter(lambda **more: kind(model, **{**options, **more}), only=check) == [check]


def test_hard_labels_push_the_predicted_class_of_every_pixel() -> None:
    model = segformer()
    adapter = Tent(model, loss="hard", batch_statistics=False)
    images = stream(adapter, 1)[0]
    with torch.no_grad():
        logits = model(images).logits
    found = adapter(images)
    torch.testing.assert_close(found, logits)
    wanted = -logits.log_softmax(1).amax(1).mean()
    assert float(torch.as_tensor(adapter.diagnostics["loss"])) == pytest.approx(float(wanted), rel=1e-5)


@pytest.mark.parametrize("method", ["testdg", "tent"])
@pytest.mark.parametrize("preset", ["acdc", "streets"])
def test_the_presets_for_pixels_run(method: str, preset: str) -> None:
    kind = find_method(method)
    adapter = kind(segformer(), **kind.preset(preset))
    for images in stream(adapter, 2, 2):
        assert adapter(images).isfinite().all()
