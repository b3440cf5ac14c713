"""Settings and presets of TestDG, its networks, and the warm-up of its amplifier."""

from dataclasses import fields

import pytest
import torch
from testdg_cases import BASE, DOMAIN, copied, layers, make, moved
from torch import Tensor, nn

from testdg.methods.testdg import TestDG, TestDGSettings, method
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


def test_extractor_and_discriminator_learn_with_the_settings_for_imagenet(vit: VisionModel) -> None:
    """SGD at the published rate would leave them where they are: the first step of Adam is as long as its rate."""
    adapter = TestDG(vit, **TestDG.preset("imagenet-c"))
    before = copied(adapter)
    adapter(stream(adapter, 1)[0])
    for name, module in (("extractor", adapter.extractor), ("discriminator", adapter.discriminator)):
        steps = [float((now - old).abs().max()) for now, old in zip(module.parameters(), before[name], strict=True)]
        assert max(steps) == pytest.approx(2e-5, rel=0.05)


def test_the_first_domain_is_compared_in_the_space_that_step_1_made(
    vit: VisionModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    adapter = make(vit)
    images = stream(adapter, 1)[0]
    state = adapter.generator.get_state()
    augmented = adapter.augment(adapter.model.prepare(images), adapter.generator)
    adapter.generator.set_state(state)
    with torch.no_grad():
        features = adapter.model(augmented).features  # the amplifier starts without effect
        stale = adapter.extractor(features)
    seen: list[Tensor] = []
    loss = method.invariance_loss

    def remember(embeddings: Tensor, reference: Tensor, generator: torch.Generator) -> Tensor:
        seen.append(reference.clone())
        return loss(embeddings, reference, generator)

    monkeypatch.setattr(method, "invariance_loss", remember)
    adapter(images)
    with torch.no_grad():
        torch.testing.assert_close(seen[0], adapter.extractor(features))
    assert not torch.allclose(seen[0], stale, atol=1e-3)


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


def test_reset_comes_back_to_the_warm_amplifier(vit: VisionModel) -> None:
    adapter = make(vit, source_images=24, warm_up_learning_rate=1e-2)
    adapter.warm_up(source_batches(adapter))
    warm = copied(adapter)
    for images in stream(adapter, 3):
        adapter(images)
    assert moved(adapter, warm) >= {*DOMAIN, "model"}
    adapter.reset()
    assert moved(adapter, warm) == set()


def test_without_images_or_amplifier_there_is_no_warm_up(vit: VisionModel) -> None:
    assert BASE.get("source_images", 0) == 0
    assert not make(vit).awaits_source
    assert not make(vit, source_images=24, amplifier=False).awaits_source
