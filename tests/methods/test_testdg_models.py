"""TestDG on several models, batch sizes and options."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from support.networks import hugging_face
from support.testdg_cases import DOMAIN, change, copied, make, moved, second_domain
from testdg.core.learner import moments
from testdg.methods.testdg import TestDG
from testdg.models import Preprocessing, TinyViT, VisionModel, load_model
from testdg.models.segformer import tiny_segformer
from testdg.testing import stream


@pytest.fixture(params=["vit", "cnn", "hf-vit", "hf-dinov2"])
def model(request: pytest.FixtureRequest) -> VisionModel:
    name: str = request.param
    return hugging_face(name) if name.startswith("hf") else request.getfixturevalue(name)


def finite(adapter: TestDG) -> bool:
    return all(bool(t.isfinite().all()) for t in adapter.tensors().values() if t.is_floating_point())


@pytest.mark.parametrize("sizes", [[1, 1, 1, 1, 1], [3, 3, 3, 2], [40, 40, 13]], ids=str)
def test_models_and_batch_sizes(model: VisionModel, sizes: list[int]) -> None:
    adapter = make(model, queue_length=10, prototypes=6, threshold=0.0)
    generator = torch.Generator().manual_seed(0)
    before = copied(adapter)
    for k, size in enumerate(sizes):
        held = len(adapter.queue)
        logits = adapter(torch.rand(size, 3, 32, 32, generator=generator))
        assert logits.shape == (size, 10)
        assert len(adapter.queue) == min(10, size)  # the threshold is zero, so that each batch is a new domain
        assert len(adapter.prototypes) == (min(6, held) if k else 0)
    assert finite(adapter)
    assert adapter.skipped == 0
    assert moved(adapter, before) >= {*DOMAIN, "model", "teacher"}


@pytest.mark.parametrize(
    "settings",
    [
        *({"selection": name} for name in ("mmd", "random", "fifo", "reservoir")),
        *({"distance": name} for name in ("chamfer", "mmd", "hausdorff")),
        {"as_released": True},
        {"as_released": True, "amplifier": False},
        {"as_released": True, "distance": "mmd", "selection": "reservoir"},
        {"optimizer": "sgd", "learning_rate": 1e-2},
        {"symmetric": True},
        {"previous_domains": 3},
        {"early": 3},
        {"predict": "student"},
        *({"as_released": True, "released_for": name} for name in ("cifar100-c", "imagenet-c")),
        {"amplifier": False},
        {"precision": "bf16"},
    ],
    ids=lambda settings: "-".join(f"{key}={value}" for key, value in settings.items()),
)
def test_every_option_runs_on_from_domain_to_domain(vit: VisionModel, settings: dict[str, Any]) -> None:
    adapter, batches = second_domain(vit, **settings)
    for k, images in enumerate(batches):
        if k == 3:
            change(adapter, images)
        logits = adapter(images[: 1 + 2 * (k % 3)])
        assert bool(logits.isfinite().all())
    assert finite(adapter)
    assert adapter.skipped == 0
    assert len(adapter.prototypes) == 8 * (2 if settings.get("previous_domains") == 3 else 1)


def test_a_cnn_with_the_statistics_of_the_batch(cnn: VisionModel) -> None:
    adapter, batches = second_domain(cnn)
    (remark,) = adapter.remarks()
    assert "1.5 images of the source" in remark
    statistics = {name: value.clone() for name, value in adapter.model.named_buffers()}
    for images in batches:
        assert bool(adapter(images).isfinite().all())
    assert all(torch.equal(value, statistics[name]) for name, value in adapter.model.named_buffers())
    fresh = make(cnn)
    images = stream(fresh, 1)[0]
    assert not torch.allclose(fresh.predict(images[:2]), fresh.predict(images)[:2], atol=1e-4)


def test_a_network_without_batch_norm_is_as_the_paper_has_it(vit: VisionModel) -> None:
    torch.manual_seed(0)
    maps = load_model(tiny_segformer(4), preprocessing=Preprocessing((32, 32)))
    for model in (vit, maps):
        adapters = [make(model, batch_norm=choice) for choice in ("auto", "source")]
        assert adapters[0].remarks() == []
        for images in stream(adapters[0]):
            one, other = (adapter(images) for adapter in adapters)
            assert torch.equal(one, other)


def test_grey_images() -> None:
    network = TinyViT(width=32, depth=2, patch=8)
    network.patches = nn.Conv2d(1, 32, 8, 8)
    model = load_model(network, preprocessing=Preprocessing((32, 32), mean=(0.5,), std=(0.5,)))
    adapter, batches = second_domain(model)
    assert bool(adapter(next(batches)).isfinite().all())


def test_losses_that_are_not_finite_are_skipped(vit: VisionModel) -> None:
    adapter, batches = second_domain(vit)
    with torch.no_grad():
        next(adapter.extractor.parameters())[0] = torch.nan
    before = copied(adapter)
    before_step = {name: value.clone() for name, value in moments(adapter.encoder_learner.optimizer).items()}
    logits = adapter(next(batches))
    assert adapter.skipped == 3  # extractor with discriminator, amplifier, encoder
    assert bool(logits.isfinite().all())
    assert not moved(adapter, before) & {"model", "discriminator", "amplifier", "prototypes"}
    assert all(
        torch.equal(value, before_step[name]) for name, value in moments(adapter.encoder_learner.optimizer).items()
    )


@pytest.mark.parametrize("settings", [{"predict": "student"}, {"predict": "teacher"}, {"as_released": True}], ids=str)
def test_an_exported_model_predicts_as_the_adapter(
    model: VisionModel, settings: dict[str, Any], tmp_path: Path
) -> None:
    adapter, batches = second_domain(model, batch_norm="source", **settings)
    for images in batches:
        adapter(images)
    generator = torch.Generator().manual_seed(0)
    for name in ("amplifier", "teacher_amplifier"):
        if hasattr(adapter, name):
            for parameter in adapter.get_submodule(name).parameters():  # in a few batches it hardly grows
                parameter += 0.3 * torch.randn(parameter.shape, generator=generator)
    adapter.export(tmp_path / "adapted")
    again = load_model(tmp_path / "adapted")
    expected = adapter.predict(images)
    with torch.no_grad():
        found = again(again.prepare(images)).logits
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)
        if settings.get("as_released"):
            plain = adapter.teacher(images).logits
            assert not torch.allclose(plain, expected, atol=1e-4), "the amplifier did not matter"
