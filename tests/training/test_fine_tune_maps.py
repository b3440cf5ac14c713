"""Training of segmentation models: losses and views against hand computation, resuming, and what is written."""

import json
import math
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st

from support.errors import refused
from support.training import SmallStreets, generator
from testdg.data.benchmarks import load_benchmark
from testdg.data.stream import to_float
from testdg.models import load_model
from testdg.runs.training.fine_tune import FineTuning, fine_tune, starting_model
from testdg.runs.training.folder import TrainingFolder
from testdg.runs.training.losses import cross_entropy, overlap_loss
from testdg.runs.training.recipe import ClassTuning, MapTuning, make_recipe
from testdg.runs.training.views import map_view

SHORT = MapTuning(epochs=3, batch_size=4)


def test_training_learns_and_writes_its_score(tmp_path: Path) -> None:
    told: list[tuple[int, int, float, float]] = []
    bench, recipe = SmallStreets(), MapTuning(epochs=20, batch_size=4, learning_rate=3e-3, scale_from=1.0, scale_to=1.2)
    about = fine_tune(bench, "tiny", tmp_path / "out", recipe, device="cpu", on_progress=lambda *a: told.append(a))
    assert [done for done, *_ in told] == [20, 40]
    assert told[-1][2] < 0.85 * told[0][2]
    assert told[-1][3] < told[0][3]
    stored = json.loads((tmp_path / "out" / "training.json").read_text())
    assert {**about, "checksums": stored["checksums"]} == stored
    again = transformers.AutoModelForSemanticSegmentation.from_pretrained(tmp_path / "out")
    assert again.config.id2label == dict(enumerate(bench.classes))
    model, test = load_model(tmp_path / "out"), bench.test()
    with torch.no_grad():
        found = model(to_float(test.images)).logits.argmax(1)
    both = [((found == c) & (test.labels == c)).sum().item() for c in range(9)]
    either = [((found == c) | (test.labels == c)).sum().item() for c in range(9)]
    expected = {name: 100 * b / e if e else None for name, b, e in zip(bench.classes, both, either, strict=True)}
    known = [value for value in expected.values() if value is not None]
    assert about["clean_class_iou"] == pytest.approx(expected)
    assert about["clean_miou"] == pytest.approx(sum(known) / len(known))
    assert about["clean_error"] == pytest.approx(100 * (found != test.labels).float().mean().item())
    assert about["clean_error"] < 60


def test_the_decoder_has_its_own_learning_rate_and_every_weight_is_learnt_once(tmp_path: Path) -> None:
    bench, recipe = SmallStreets(), MapTuning(learning_rate=1e-4, head_rate=10.0, weight_decay=0.01)
    model = starting_model(bench, "tiny")
    training = FineTuning(model, bench.train(), recipe, TrainingFolder(tmp_path, {}), lambda *_: None, 60.0)
    rates = {id(p): (g["lr"], g["weight_decay"]) for g in training.optimizer.param_groups for p in g["params"]}
    assert sum(len(g["params"]) for g in training.optimizer.param_groups) == len(list(model.parameters()))
    for name, parameter in model.network.named_parameters():
        rate = 1e-3 if name.startswith("decode_head.") else 1e-4
        assert rates[id(parameter)] == (pytest.approx(rate), 0.01 if parameter.ndim > 1 else 0.0)


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**31), smoothing=st.sampled_from([0.0, 0.2]))
def test_the_cross_entropy_is_torchs_weighted_mean(seed: int, smoothing: float) -> None:
    logits = torch.randn(2, 3, 4, 5, generator=generator(seed))
    labels = torch.randint(4, (2, 4, 5), generator=generator(seed + 1))
    labels[labels == 3] = 255
    weights = torch.tensor([0.5, 1.0, 2.0])
    expected = F.cross_entropy(logits, labels, weights, ignore_index=255, label_smoothing=smoothing)
    torch.testing.assert_close(cross_entropy(logits, labels, weights, smoothing), expected)


def test_a_batch_without_classes_teaches_nothing() -> None:
    logits = torch.randn(1, 3, 4, 4, generator=generator(), requires_grad=True)
    labels = torch.full((1, 4, 4), 255)
    loss = cross_entropy(logits, labels, torch.ones(3)) + overlap_loss(logits, labels)
    loss.backward()
    assert loss.item() == 0
    assert torch.equal(logits.grad, torch.zeros_like(logits))


def test_the_overlap_of_certain_predictions_is_their_iou() -> None:
    labels = torch.tensor([[[0, 0, 0, 1], [1, 1, 255, 255]]])
    found = torch.tensor([[[0, 0, 1, 1], [1, 2, 0, 2]]])
    logits = 100 * F.one_hot(found, 4).permute(0, 3, 1, 2).float()
    # class 0: 2 of 3; class 1: 2 of 4; classes 2 and 3 are no label of any pixel
    assert overlap_loss(logits, labels).item() == pytest.approx(1 - (2 / 3 + 2 / 4) / 2)


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**31), scale=st.sampled_from([0.5, 0.8, 1.0, 1.6]))
def test_what_lies_beyond_a_smaller_image_is_ignored(seed: int, scale: float) -> None:
    labels = torch.arange(8 * 10).view(1, 8, 10).expand(3, -1, -1)
    images = (labels[:, None] / 100).expand(-1, 3, -1, -1).contiguous()
    view, found = map_view(images, labels, (scale, scale), generator(seed), mirror=False)
    assert view.shape == images.shape
    seen = (found != 255).float().mean().item()
    assert seen == pytest.approx(min(1, scale) ** 2, abs=0.15)
    if scale == 1.0:
        assert torch.equal(found, labels)
        torch.testing.assert_close(view, images)


def test_maps_that_are_larger_than_their_images_are_read_at_the_same_place() -> None:
    large = torch.arange(4).view(2, 2).repeat_interleave(8, 0).repeat_interleave(8, 1)[None]  # (1, 16, 16)
    images = large[:, None, ::2, ::2].expand(-1, 3, -1, -1) / 4
    view, found = map_view(images, large, (1, 1), generator(), mirror=False)
    assert found.shape == (1, 8, 8)
    torch.testing.assert_close(view[:, 0] * 4, found.float())


def test_starting_models() -> None:
    bench = load_benchmark("streets", images=1)
    small = starting_model(bench, "tiny")
    assert (small.task, small.classes) == ("segmentation", 9)
    assert starting_model(bench, "tiny", seed=1).fingerprint() != small.fingerprint()
    config = transformers.SegformerConfig(
        hidden_sizes=[8] * 4, depths=[1] * 4, num_attention_heads=[1] * 4, decoder_hidden_size=8, num_labels=4
    )
    other = transformers.SegformerForSemanticSegmentation(config)
    changed = starting_model(bench, other)
    assert (changed.task, changed.classes) == ("segmentation", 9)
    assert dict(changed.network.config.id2label) == dict(enumerate(bench.classes))
    with refused("wrong-task", "classification", "streets"):
        starting_model(bench, starting_model(load_benchmark("digits-c"), "tiny"))


@pytest.mark.parametrize(
    ("task", "key", "value", "named"),
    [
        ("classification", "epochs", 0, "got 0"),
        ("classification", "images", -1, "got -1"),
        ("classification", "learning_rate", math.nan, "nan"),
        ("classification", "smoothing", 2.0, "0 to 1"),
        ("classification", "precision", "fp8", "'fp8'"),
        ("classification", "seed", -1, "got -1"),
        ("segmentation", "balance", 1.5, "0 to 1"),
        ("segmentation", "head_rate", -1.0, "-1.0"),
        ("segmentation", "overlap", math.nan, "nan"),
        ("segmentation", "scale_from", 2.5, "2.5 to 2.0"),
        ("segmentation", "scale_from", math.nan, "nan to 2.0"),
    ],
)
def test_a_recipe_is_checked(task: str, key: str, value: object, named: str) -> None:
    with refused("wrong-value", key, named):
        make_recipe(task, {key: value})


def test_a_recipe_of_another_task_is_refused(tmp_path: Path) -> None:
    with refused("wrong-task", "classification", "streets"):
        fine_tune(SmallStreets(), "tiny", tmp_path / "out", ClassTuning(), device="cpu")
    for task, key in (("classification", "overlap"), ("segmentation", "image_size")):
        with refused("option-conflict", task, f"--{key.replace('_', '-')}"):
            make_recipe(task, {key: 1})
