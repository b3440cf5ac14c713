"""The source model of streets: views, weights of classes, and a training in small."""

import pytest
import torch
from torch import Tensor

from support.errors import refused
from support.training import SmallStreets
from testdg.data.benchmarks import load_benchmark
from testdg.data.stream import LabelledImages
from testdg.models import VisionModel
from testdg.runs.training.embedded import EmbeddedClasses, EmbeddedMaps, default_recipe, train
from testdg.runs.training.losses import class_weights
from testdg.runs.training.views import map_view


def test_each_task_has_a_recipe() -> None:
    assert default_recipe(load_benchmark("streets", images=1)) == EmbeddedMaps()
    assert default_recipe(load_benchmark("digits-c", images=1)) == EmbeddedClasses()


def test_rare_classes_weigh_more_and_the_mean_pixel_weighs_one() -> None:
    labels = torch.tensor([0] * 16 + [1] * 4 + [255] * 5, dtype=torch.uint8)
    weights = class_weights(labels, 3, 0.5)
    assert float(weights[1] / weights[0]) == pytest.approx(2)  # (16 / 4) ** 0.5
    assert float(weights[labels[labels != 255].long()].mean()) == pytest.approx(1)
    assert weights.isfinite().all()
    assert torch.equal(class_weights(labels[:20], 2, 0.0), torch.ones(2))


def test_labels_go_along_with_the_view() -> None:
    labels = torch.zeros(6, 32, 48, dtype=torch.int64)
    labels[:, 8:20, 10:30], labels[:, :, 40:] = 1, 2
    images = (labels[:, None].float() / 2).expand(-1, 3, -1, -1)
    view, found = map_view(images, labels, (1, 1.5), torch.Generator().manual_seed(0))
    assert ((view[:, 0] * 2 - found).abs() < 0.5).float().mean() > 0.97  # apart from blended borders
    assert not torch.equal(found, labels)
    mirrored = [bool((one[:, :4] == 2).all()) for one in found]
    assert True in mirrored
    assert False in mirrored


def accuracy(model: VisionModel, samples: LabelledImages) -> float:
    with torch.no_grad():
        right: Tensor = model(samples.images / 255).logits.argmax(1) == samples.labels
    return float(right.float().mean())


def test_training_learns_its_scenes_and_is_repeatable() -> None:
    bench, told = SmallStreets(), []
    recipe = EmbeddedMaps(epochs=6, batch_size=4)
    model = train(bench, recipe, lambda done, steps: told.append((done, steps)), "small")
    assert (told[-1], model.name, model.training, model.classes) == ((12, 12), "small", False, 9)
    assert accuracy(model, bench.train()) > 0.5  # the largest class has a third of the pixels
    again = train(bench, recipe, lambda *_: None, "small")
    assert again.fingerprint() == model.fingerprint()


def test_maps_without_any_class_are_refused() -> None:
    with refused("no-labels"):
        class_weights(torch.full((2, 4, 4), 255, dtype=torch.uint8), 3, 0.5)
