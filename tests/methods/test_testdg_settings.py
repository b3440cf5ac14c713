"""Settings and presets of TestDG, its networks, and the warm-up of its amplifier."""

from dataclasses import fields
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from support.testdg_cases import BASE, copied, layers, make, moved
from testdg.methods.testdg import TestDG, TestDGSettings
from testdg.methods.testdg.released import bias_free_mlp
from testdg.models import VisionModel
from testdg.testing import stream

PUBLISHED = {
    # threshold, encoder, amplifier and extractor rates, w_dis, w_inv, momentum of the amplifier, prototype rate, steps
    "cifar10-c": (0.1, 1e-4, 6e-5, 1e-5, 0.05, 0.07, None, 0.01, 1),
    "cifar100-c": (0.16, 3e-4, 9e-6, 1e-5, 0.005, 0.005, None, 0.008, 3),
    "imagenet-c": (0.2, 5e-7, 2e-7, 2e-5, 0.06, 0.006, 0.8, 0.01, 1),
}


@pytest.mark.parametrize("suffix", ["", "-released"])
@pytest.mark.parametrize("name", list(PUBLISHED))
def test_presets_are_the_published_settings(name: str, suffix: str) -> None:
    s = TestDGSettings(**TestDG.preset(name + suffix))
    found = (
        s.threshold, s.learning_rate, s.amplifier_learning_rate, s.extractor_learning_rate, s.discrimination_weight,
        s.invariance_weight, s.amplifier_momentum, s.prototype_learning_rate, s.prototype_steps,
    )  # fmt: skip
    assert found == PUBLISHED[name]
    assert (s.optimizer, s.symmetric) == (("sgd", True) if name == "imagenet-c" else ("adam", False))
    assert (s.as_released, s.released_for) == (bool(suffix), name)
    assert (s.prototypes, s.queue_length) == ((50, 512) if suffix and name != "cifar10-c" else (40, 256))
    assert (s.momentum, s.rank) == (0.999, 128)


def test_presets_of_other_benchmarks_set_rates_thresholds_and_weights() -> None:
    for name in TestDG.presets.keys() - {name + suffix for name in PUBLISHED for suffix in ("", "-released")}:
        for key in TestDG.preset(name):
            assert key in ("threshold", "symmetric", "flip") or key.endswith(("_rate", "_weight")), f"{name} sets {key}"


def test_all_that_can_be_set_can_be_overseen() -> None:
    names = [f.name for f in fields(TestDGSettings)]
    assert len(names) <= 35
    first = ["as_released", "threshold", "learning_rate", "discrimination_weight", "invariance_weight"]
    assert names[2:7] == first  # after seed and precision


def test_networks(vit: VisionModel) -> None:
    adapter = make(vit)
    assert layers(adapter.extractor) == [(128, 32), nn.ReLU, (16, 128)]
    assert layers(adapter.discriminator) == [(16, 16), nn.GELU, (1, 16)]
    assert adapter.gamma is None


# Warm-up


def source_batches(adapter: TestDG) -> list[tuple[Tensor, Tensor]]:
    return [(images, torch.arange(len(images)) % 10) for images in stream(adapter, 4, 6, seed=5)]


@pytest.mark.parametrize("released", [False, True])
def test_a_warm_up_trains_the_amplifier_alone(vit: VisionModel, released: bool) -> None:
    adapter = make(vit, as_released=released, source_images=24, warm_up_learning_rate=1e-2)
    before = copied(adapter)
    assert adapter.awaits_source
    adapter.warm_up(source_batches(adapter))
    assert not adapter.awaits_source
    assert moved(adapter, before) == ({"amplifier", "teacher_amplifier"} if released else {"amplifier"})
    assert adapter.amplifier is not None
    if released:
        pairs = zip(*(part.parameters() for part in (adapter.teacher_amplifier, adapter.amplifier)), strict=True)
        assert all(torch.equal(a, b) for a, b in pairs)


def test_a_warm_up_lowers_the_loss_on_source_images(vit: VisionModel) -> None:
    adapter = make(vit, source_images=240, warm_up_learning_rate=1e-2)
    batches = source_batches(adapter)

    @torch.no_grad()
    def loss() -> float:
        assert adapter.amplifier is not None
        passes = ((adapter.amplifier.run(adapter.model, x).logits, y) for x, y in batches)
        return sum(float(nn.functional.cross_entropy(logits, y)) for logits, y in passes)

    before = loss()
    adapter.warm_up(10 * batches)
    assert loss() < 0.8 * before


def test_without_images_or_amplifier_there_is_no_warm_up(vit: VisionModel) -> None:
    assert BASE.get("source_images", 0) == 0
    assert not make(vit).awaits_source
    assert not make(vit, source_images=24, amplifier=False).awaits_source


# Where the released code differs from the text, point by point; `test_testdg_reference` has whole batches


def released(model: VisionModel, **settings: Any) -> TestDG:
    return make(model, as_released=True, **settings)


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("as_released", [False, True])
def test_only_the_code_pauses_invariance(vit: VisionModel, as_released: bool) -> None:
    adapter = make(vit, as_released=as_released)
    images, seen = stream(adapter, 1)[0], {}
    for number in (0, 1, 19, 20, 49, 50, 69, 70, 120):
        adapter.batches = number
        adapter(images)
        seen[number] = "invariance_loss" in adapter.diagnostics
    assert [number for number, found in seen.items() if found] == ([20, 49, 70, 120] if as_released else list(seen))


def test_networks_of_the_released_code(vit: VisionModel) -> None:
    """Of ten classes."""
    adapter = released(vit)
    assert layers(adapter.extractor) == [(20, 10), nn.GELU, (4, 20)]
    assert layers(adapter.discriminator) == [(16, 4), nn.ReLU, (8, 16), nn.ReLU, (1, 8)]
    assert layers(released(vit, released_for="imagenet-c").extractor) == [(31, 10), nn.GELU, (7, 31), nn.GELU, (4, 7)]
    assert adapter.gamma == 1
    assert released(vit, gamma=0.5).gamma == 0.5


def test_the_extractor_has_no_biases_and_starts_as_he_does_it() -> None:
    torch.manual_seed(0)
    for inputs, outputs in ((10, 20), (1000, 31)):
        (layer,) = bias_free_mlp([inputs, outputs], seeded())
        assert isinstance(layer, nn.Linear)
        assert layer.bias is None
        expected = nn.init.kaiming_uniform_(torch.empty(inputs, outputs), a=1).T  # stored the other way round
        weight = layer.weight.detach()
        assert float(weight.std()) == pytest.approx(float(expected.std()), rel=0.1)
        assert float(weight.abs().max()) == pytest.approx(float(expected.abs().max()), rel=0.02)


def test_the_amplifier_starts_smaller(vit: VisionModel) -> None:
    adapter = released(vit, rank=16)
    assert adapter.amplifier is not None
    for down in adapter.amplifier.down.values():
        assert float(down.detach().std()) == pytest.approx(1 / 16**2, rel=0.1)
    assert pytest.approx(340, abs=2) == (1 / 3 / 768) ** 0.5 * 128**2  # ViT-B/16, text to code
