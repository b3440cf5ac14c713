"""The file of an alignment next to the weights, and files that do not fit."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from support.alignment import WIDTH, dark, images, sites, watched
from support.errors import refused
from testdg.methods.align import site_names
from testdg.methods.parts.blocks import prefix_tokens
from testdg.models import VisionModel, load_model
from testdg.models.alignment import FILE, Alignment, detach

MakeFolder = Callable[[str], tuple[Path, Any]]


def adapted() -> VisionModel:
    """A model that has followed a stream."""
    model, alignment = watched(threshold=0.5, reads="batch")
    with torch.no_grad():
        alignment.propose(model.run(dark(30)).logits)
    alignment.remember(changed=True)
    return model


@torch.no_grad()
def test_a_saved_alignment_predicts_the_same(tmp_path: Path) -> None:
    model = adapted()
    model.save(tmp_path / "one")
    assert (tmp_path / "one" / FILE).is_file()
    again = load_model(tmp_path / "one")
    for batch in (images(5, seed=4), dark(40, seed=5), images(40, seed=6)):
        assert torch.equal(again(batch).logits, model(batch).logits)
    assert again.fingerprint() == model.fingerprint()
    assert again.alignment is not None
    assert (again.alignment.blocks, again.alignment.reads, again.alignment.threshold) == (["blocks.1"], "batch", 0.5)
    again.save(tmp_path / "two")
    assert (tmp_path / "two" / FILE).read_bytes() == (tmp_path / "one" / FILE).read_bytes()


def test_an_alignment_is_part_of_the_fingerprint(tmp_path: Path) -> None:
    model = adapted()
    first = model.fingerprint()
    sites(model)[0].stream_mean[0, 0] += 1e-3
    assert model.fingerprint() != first
    detach(model)
    assert model.fingerprint() not in ("", first)
    model.save(tmp_path)
    assert not (tmp_path / FILE).exists()
    assert load_model(tmp_path).alignment is None


def test_an_alignment_of_a_transformers_model_comes_back(make_folder: MakeFolder, tmp_path: Path) -> None:
    for kind in ("vit", "segformer"):
        model = load_model(make_folder(kind)[0])
        (name,) = site_names(model, 1)
        prefix = prefix_tokens(model, name)
        assert prefix == {"vit": 1, "segformer": 0}[kind]
        alignment = Alignment(model, [name], prefix=prefix, class_token=True, memory=100.0)
        alignment.measure(model.run, images(64).split(32), 100.0)
        mean = sites(model)[0].stream_mean
        mean += torch.linspace(-1, 1, mean.shape[1])
        model.save(tmp_path / "saved" / kind)
        with torch.no_grad():
            again = load_model(tmp_path / "saved" / kind)
            assert torch.equal(again(images(3)).logits, model(images(3)).logits)
            assert not torch.allclose(load_model(make_folder(kind)[0])(images(3)).logits, model(images(3)).logits)


@pytest.mark.parametrize(
    ("tensors", "about"),
    [
        ({"sites.0.source_mean": torch.zeros(2, WIDTH + 1)}, {}),
        ({"sites.0.unit": None}, {}),
        ({}, {"blocks": ["blocks.7"]}),
        ({}, {"blocks": ["head"]}),
        ({}, {"speed": 3}),
        ({}, {"prefix": "one"}),
        ({}, None),
        ({}, [1]),
    ],
)
def test_a_file_that_does_not_fit_is_named(tensors: dict[str, Tensor | None], about: Any, tmp_path: Path) -> None:
    adapted().save(tmp_path)
    with safe_open(tmp_path / FILE, "pt") as file:
        own = json.loads(file.metadata()["alignment"])
    changed = {name: value for name, value in {**load_file(tmp_path / FILE), **tensors}.items() if value is not None}
    written = json.dumps({**own, **about} if isinstance(about, dict) else about)
    save_file(changed, tmp_path / FILE, None if about is None else {"alignment": written})
    with refused("damaged-model", FILE):
        load_model(tmp_path)


@pytest.mark.parametrize("content", [b"", b"\x07" * 300, bytes(range(256)) * 4])
def test_a_damaged_file_is_named(content: bytes, tmp_path: Path) -> None:
    adapted().save(tmp_path)
    (tmp_path / FILE).write_bytes(content)
    with refused("damaged-model", FILE):
        load_model(tmp_path)
