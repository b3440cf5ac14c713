"""What belongs to the text of the paper, and what to the code of its authors."""

from dataclasses import fields
from typing import Any

import pytest
import torch
from testdg_cases import BASE, DOMAIN, copied, make, moved, second_domain
from torch import Tensor, nn

from testdg.methods.testdg import TestDG, TestDGSettings, method
from testdg.methods.testdg.rules import RELEASED, TEXT
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
    assert s.as_released is bool(suffix)
    assert (s.prototypes, s.queue_length) == ((50, 512) if suffix and name != "cifar10-c" else (40, 256))
    assert (s.momentum, s.rank) == (0.999, 128)


def test_presets_of_other_benchmarks_set_rates_thresholds_and_weights() -> None:
    for name in TestDG.presets.keys() - {name + suffix for name in PUBLISHED for suffix in ("", "-released")}:
        for key in TestDG.preset(name):
            assert key in ("threshold", "flip") or key.endswith(("_rate", "_weight")), f"{name} sets {key}"


def test_all_that_can_be_set_can_be_overseen() -> None:
    names = [f.name for f in fields(TestDGSettings)]
    assert len(names) <= 33
    first = ["as_released", "threshold", "learning_rate", "discrimination_weight", "invariance_weight"]
    assert names[2:7] == first  # after seed and precision


def layers(network: nn.Module) -> list[Any]:
    return [tuple(x.weight.shape) if isinstance(x, nn.Linear) else type(x) for x in network.children()]


def test_networks(vit: VisionModel) -> None:
    text, released = make(vit), make(vit, as_released=True)
    assert layers(text.extractor) == [(128, 32), nn.ReLU, (16, 128)]
    assert layers(text.discriminator) == [(16, 16), nn.GELU, (1, 16)]
    assert layers(released.extractor) == [(20, 10), nn.GELU, (4, 20)]  # ten classes
    assert layers(released.discriminator) == [(16, 4), nn.ReLU, (8, 16), nn.ReLU, (1, 8)]


def test_gamma_where_none_is_given(vit: VisionModel) -> None:
    assert make(vit).gamma is None
    assert make(vit, as_released=True).gamma == 1
    assert make(vit, as_released=True, gamma=0.5).gamma == 0.5


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
        features = adapter.teacher(augmented).features  # the teacher's amplifier is nothing yet
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


def equal_share(adapter: TestDG, module: VisionModel, source: list[Tensor]) -> float:
    pairs = zip(module.parameters(), source, strict=True)
    return float(torch.cat([(now == old).flatten() for now, old in pairs]).float().mean())


def test_weights_go_back_to_the_source_after_the_moving_average(vit: VisionModel) -> None:
    """With momentum zero the teacher is the student before a tenth of it went back."""
    adapter = make(vit, as_released=True, symmetric=True, momentum=0.0)
    source = [p.detach().clone() for p in adapter.model.parameters()]
    adapter(stream(adapter, 1)[0])
    assert equal_share(adapter, adapter.model, source) == pytest.approx(0.1, abs=0.02)
    assert equal_share(adapter, adapter.teacher, source) < 0.01


def test_the_amplifier_goes_back_too(vit: VisionModel) -> None:
    adapter = make(vit, as_released=True, symmetric=True)
    for images in stream(adapter, 3):
        adapter(images)
    assert adapter.amplifier is not None
    values = torch.cat([p.flatten() for p in adapter.amplifier.up.values()])
    assert float((values == 0).float().mean()) == pytest.approx(0.1, abs=0.02)


def test_the_text_puts_nothing_back(vit: VisionModel) -> None:
    adapter = make(vit, symmetric=True)
    source = [p.detach().clone() for p in adapter.model.parameters()]
    adapter(stream(adapter, 1)[0])
    assert equal_share(adapter, adapter.model, source) < 0.01


@pytest.mark.parametrize("released", [False, True])
def test_only_the_code_pauses_invariance(vit: VisionModel, released: bool) -> None:
    adapter = make(vit, as_released=released)
    images, seen = stream(adapter, 1)[0], {}
    for number in (0, 1, 19, 20, 49, 50, 69, 70, 120):
        adapter.batches = number
        adapter(images)
        seen[number] = "invariance_loss" in adapter.diagnostics
    assert [number for number, asked in seen.items() if asked] == ([20, 49, 70, 120] if released else list(seen))


def test_the_code_trains_the_amplifier_by_self_training(vit: VisionModel) -> None:
    for released, expected in ((False, set()), (True, {"amplifier", "teacher_amplifier"})):
        adapter = make(vit, as_released=released, symmetric=True, discrimination=False, invariance=False)
        before = copied(adapter)
        adapter(stream(adapter, 1)[0])
        assert moved(adapter, before) == {"model", "teacher"} | expected


def test_the_code_replaces_prototypes_and_the_text_moves_them(vit: VisionModel) -> None:
    for released, bound in ((False, 2 * 0.01 + 1e-6), (True, None)):
        adapter, batches = second_domain(vit, as_released=released, prototype_learning_rate=0.01)
        before = adapter.prototypes.current.clone()
        adapter(next(batches))
        furthest = float((adapter.prototypes.current - before).abs().max())
        assert furthest > 0.5 if bound is None else furthest <= bound


def test_the_queue_of_the_code_has_the_first_batch_of_the_new_domain(vit: VisionModel) -> None:
    """It notices a change in the batch that brings it, and acts when the next one comes."""
    for released, first in ((False, 18), (True, 24)):
        adapter = make(vit, as_released=released)
        batches = stream(adapter, 6, 6)
        for k, images in enumerate(batches[:5]):
            adapter.detector.threshold = -1.0 if k == 3 else 10.0
            adapter(images)
        assert int(adapter.queue.content()[1].min()) == first


def test_the_two_differ_in_every_rule() -> None:
    same = [f.name for f in fields(TEXT) if getattr(TEXT, f.name) == getattr(RELEASED, f.name)]
    assert same == []


# Warm-up


def source_batches(adapter: TestDG) -> list[tuple[Tensor, Tensor]]:
    return [(images, torch.arange(len(images)) % 10) for images in stream(adapter, 4, 6, seed=5)]


@pytest.mark.parametrize("released", [False, True])
def test_a_warm_up_trains_the_amplifier_alone_and_the_teacher_follows(vit: VisionModel, released: bool) -> None:
    adapter = make(vit, as_released=released, source_images=24, warm_up_learning_rate=1e-2)
    before = copied(adapter)
    assert adapter.awaits_source
    adapter.warm_up(source_batches(adapter))
    assert not adapter.awaits_source
    assert moved(adapter, before) == {"amplifier", "teacher_amplifier"}
    assert adapter.amplifier is not None
    followers = [adapter.teacher_amplifier, *([adapter.source_amplifier] if released else [])]
    for follower in followers:
        assert follower is not None
        pairs = zip(follower.parameters(), adapter.amplifier.parameters(), strict=True)
        assert all(torch.equal(a, b) for a, b in pairs)


def test_a_warm_up_lowers_the_loss_on_source_images(vit: VisionModel) -> None:
    adapter = make(vit, source_images=240, warm_up_learning_rate=1e-2)
    batches = source_batches(adapter)

    def loss() -> float:
        return sum(float(nn.functional.cross_entropy(adapter.predict(x), y)) for x, y in batches)

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
