"""Models whose BatchNorm layers are aligned: saved, exported, copied, and adapted again by other methods."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import nn

from support.models import SIZED, tiny_cnn
from testdg import adapt
from testdg.models import VisionModel, load_model
from testdg.models.alignment import detach
from testdg.testing import stream


def resnet() -> VisionModel:
    """A ResNet of transformers with random weights."""
    torch.manual_seed(0)
    config = transformers.ResNetConfig(
        embedding_size=8, hidden_sizes=[8, 16], depths=[1, 2], layer_type="basic", num_labels=5
    )
    network = transformers.ResNetForImageClassification(config).eval()
    return load_model(network, preprocessing=SIZED)


MODELS = {"cnn": tiny_cnn, "resnet": resnet}


def adapted(kind: str, folder: Path, **settings: Any) -> tuple[Any, VisionModel]:
    """An adapter after a stream, and what it exports."""
    adapter = adapt(MODELS[kind](), "align", **settings)
    for images in stream(adapter, 6, 20):
        adapter(images)
    adapter.export(folder)
    return adapter, load_model(folder)


@pytest.mark.parametrize("alone", [False, True])
@pytest.mark.parametrize("kind", MODELS)
@torch.no_grad()
def test_an_exported_model_predicts_the_same(kind: str, alone: bool, tmp_path: Path) -> None:
    adapter, again = adapted(kind, tmp_path, alone=alone)
    assert again.alignment is not None
    assert len(again.alignment.norm_sites) == sum(type(m) is nn.BatchNorm2d for m in again.network.modules()) > 0
    source, images = MODELS[kind](), stream(adapter, 6, 20)
    for batch in (images[0], images[-1], images[-1][:3], images[-1][:1]):
        torch.testing.assert_close(again(batch).logits, adapter.predict(batch))
        assert not torch.allclose(again(batch).logits, source(batch).logits, atol=1e-4)
    assert again.fingerprint() == adapter.adapted_model().fingerprint()


@pytest.mark.parametrize("kind", MODELS)
@torch.no_grad()
def test_a_graph_predicts_the_same_for_other_batch_sizes(kind: str, tmp_path: Path) -> None:
    adapter, model = adapted(kind, tmp_path)
    batch = torch.export.Dim("batch", min=1, max=64)
    program = torch.export.export(model.plain(), (torch.rand(2, 3, 32, 32),), dynamic_shapes=({0: batch},))
    for images in (part[:count] for part, count in zip(stream(adapter, 4, 20), (20, 1, 7, 16), strict=True)):
        torch.testing.assert_close(program.module()(images), adapter.predict(images), rtol=1e-4, atol=1e-5)


@torch.no_grad()
def test_the_fingerprint_covers_the_memory() -> None:
    adapter = adapt(tiny_cnn(), "align")
    images = stream(adapter, 1, 20)[0]
    before = adapter.model.fingerprint()
    adapter.predict(images)
    assert adapter.model.fingerprint() == before
    adapter(images)
    assert adapter.model.fingerprint() != before
    adapter.reset()
    assert adapter.model.fingerprint() == before


@torch.no_grad()
def test_copies_are_independent() -> None:
    adapter = adapt(tiny_cnn(), "align")
    near, far = stream(adapter, 2, 20)
    adapter(near)
    copied = copy.deepcopy(adapter.model)
    assert copied.alignment is not None
    assert copied.alignment.norm_sites[0].__dict__["owner"] is copied.alignment
    before, first = copied.fingerprint(), copied(near).logits
    adapter(far)
    assert copied.fingerprint() == before
    assert torch.equal(copied(near).logits, first)
    own = adapter.model.fingerprint()
    with copied.alignment.follow():
        copied.run(far)
    assert copied.fingerprint() == adapter.model.fingerprint() == own  # both have seen the same images


@torch.no_grad()
def test_detached_layers_are_those_of_the_source() -> None:
    adapter, source = adapt(tiny_cnn(), "align"), tiny_cnn()
    images = stream(adapter, 2, 20)[1]
    adapter(images)
    detach(adapter.model)
    assert adapter.model.alignment is None
    assert torch.equal(adapter.model(images).logits, source(images).logits)
    assert not any("forward" in layer.__dict__ for layer in adapter.model.network.modules())


@pytest.mark.parametrize(
    ("method", "settings"),
    [
        ("align", {}),
        ("tent", {"learning_rate": 1e-3}),
        ("rotta", {"update_every": 8}),
        ("testdg", {"batch_norm": "batch"}),
    ],
)
def test_methods_with_statistics_of_their_own_begin_at_the_source(
    method: str, settings: dict[str, Any], tmp_path: Path
) -> None:
    adapted("cnn", tmp_path / "aligned")
    one, other = adapt(tmp_path / "aligned", method, **settings), adapt(tiny_cnn(), method, **settings)
    for images in stream(one, 6, 20):
        torch.testing.assert_close(one(images), other(images))
        torch.testing.assert_close(one.predict(images), other.predict(images))
    if other.why_not_exportable() is None:
        one.export(tmp_path / "again")
        torch.testing.assert_close(load_model(tmp_path / "again")(images).logits, one.predict(images))
