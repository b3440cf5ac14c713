from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from PIL import Image

from support.errors import refused
from testdg.models import TinyCNN, TinyViT, load_model
from testdg.models.transfer import with_classes, with_size

MakeFolder = Callable[[str], tuple[Path, Any]]


@torch.no_grad()
@pytest.mark.parametrize("kind", ["vit", "dinov2", "segformer-classifier"])
def test_a_new_classifier_is_read_back_by_transformers(kind: str, make_folder: MakeFolder, tmp_path: Path) -> None:
    model = load_model(make_folder(kind)[0])
    before = model.fingerprint()
    changed = with_classes(model, ["cat", "dog", "owl"], seed=1).eval()
    assert (changed.classes, model.classes, model.fingerprint()) == (3, 5, before)  # the model itself stays
    images = torch.rand(2, 3, 32, 32)
    assert torch.equal(changed(images).features, model(images).features)
    changed.save(tmp_path / "new")
    again = transformers.AutoModelForImageClassification.from_pretrained(tmp_path / "new").eval()
    assert again.config.id2label == {0: "cat", 1: "dog", 2: "owl"}
    torch.testing.assert_close(again(changed.normalise(images)).logits, changed(images).logits)


def test_a_new_classifier_depends_on_its_seed_alone() -> None:
    model = load_model(TinyViT(width=16, depth=1, heads=2))
    state = torch.get_rng_state()
    first, again, other = (with_classes(model, "abc", seed) for seed in (1, 1, 2))
    assert torch.equal(torch.get_rng_state(), state)
    assert first.fingerprint() == again.fingerprint() != other.fingerprint()
    assert first.network.config["classes"] == 3


@torch.no_grad()
@pytest.mark.parametrize("kind", ["vit", "dinov2"])
def test_positions_are_interpolated_to_another_size(kind: str, make_folder: MakeFolder, tmp_path: Path) -> None:
    model = load_model(make_folder(kind)[0])
    larger = with_size(model, 64)
    assert larger.preprocessing.input_size == (64, 64)
    assert larger.prepare(torch.rand(1, 3, 32, 32)).shape[-2:] == (64, 64)
    (name,) = [name for name, _ in model.named_parameters() if "position" in name]
    old, new = model.get_parameter(name), larger.get_parameter(name)
    assert (old.shape[1], new.shape[1]) == (17, 65)
    assert torch.equal(new[:, 0], old[:, 0])  # the class token keeps its place
    larger.save(tmp_path / "larger")
    assert load_model(tmp_path / "larger").fingerprint() == larger.fingerprint()


@torch.no_grad()
def test_positions_are_resized_like_a_picture() -> None:
    model = load_model(TinyViT(size=32, patch=8, width=16, depth=1, heads=2))
    positions = model.network.get_parameter("position")
    assert torch.equal(with_size(model, 32).network.get_parameter("position"), positions)
    positions[0, 1:, 5] = torch.arange(16.0) % 4  # a ramp, on which all bicubic kernels agree away from the border
    found = with_size(model, 64).network.get_parameter("position")[0, 1:, 5].reshape(8, 8)
    ramp = Image.fromarray(positions[0, 1:, 5].reshape(4, 4).numpy())
    expected = torch.from_numpy(np.array(ramp.resize((8, 8), Image.Resampling.BICUBIC)))
    torch.testing.assert_close(found[:, 3:5], expected[:, 3:5], atol=0.05, rtol=0)


@torch.no_grad()
def test_a_network_without_positions_takes_any_size() -> None:
    model = load_model(TinyCNN(width=4))
    larger = with_size(model, 48)
    assert larger.prepare(torch.rand(1, 3, 32, 32)).shape[-2:] == (48, 48)
    assert larger.fingerprint() == model.fingerprint()


def test_a_size_that_cannot_be_is_refused(make_folder: MakeFolder) -> None:
    with refused("image-size", "4 x 4"):
        with_size(load_model(make_folder("vit")[0]), 4)


def test_a_classifier_that_is_not_linear_stays() -> None:
    model = load_model(TinyViT(width=16, depth=1, heads=2))
    model.head = "norm"
    with refused("no-head", "norm", "TinyViT"):
        with_classes(model, "ab")
