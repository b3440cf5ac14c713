"""Where the released code differs from the text, point by point; `test_testdg_reference` has whole batches."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from testdg_cases import change, copied, layers, make, moved, second_domain, watched
from torch import Tensor, nn

from testdg.core.learner import moments
from testdg.methods.testdg import TestDG
from testdg.methods.testdg.released import bias_free_mlp, paired_loss
from testdg.models import VisionModel
from testdg.testing import stream


def released(model: VisionModel, **settings: Any) -> TestDG:
    return make(model, as_released=True, **settings)


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def equal_share(now: nn.Module, source: nn.Module) -> float:
    pairs = zip(now.parameters(), source.parameters(), strict=True)
    return float(torch.cat([(a == b).flatten() for a, b in pairs]).float().mean())


# 1, 2: what returns to the source


@pytest.mark.parametrize(("program", "share"), [("cifar10-c", 0.1), ("cifar100-c", 0.1), ("imagenet-c", 0.0)])
def test_weights_return_to_the_source_after_the_moving_average(vit: VisionModel, program: str, share: float) -> None:
    """With momentum zero the teacher is the student before a tenth of it returned."""
    adapter = released(vit, released_for=program, symmetric=True, momentum=0.0)
    adapter(stream(adapter, 1)[0])
    assert equal_share(adapter.model, vit) == pytest.approx(share, abs=0.02)
    assert equal_share(adapter.teacher, vit) < 0.01


def test_the_amplifier_never_returns(vit: VisionModel) -> None:
    adapter = released(vit, symmetric=True)
    start = [p.clone() for p in adapter.amplifier.parameters()]  # type: ignore[union-attr]
    for images in stream(adapter, 3):
        adapter(images)
    pairs = zip(adapter.amplifier.parameters(), start, strict=True)  # type: ignore[union-attr]
    assert float(torch.cat([(a == b).flatten() for a, b in pairs]).float().mean()) < 0.01


# 3: pairs by index


@pytest.mark.parametrize(("images", "rows"), [(4, 4), (5, 3), (2, 4)])
def test_pairs_are_by_index(images: int, rows: int) -> None:
    f, p = torch.randn(images, 4, generator=seeded(0)), torch.randn(rows, 4, generator=seeded(1))
    gaps = [abs(float(f[i, d]) - float(p[i % rows, d])) for i in range(images) for d in range(4)]
    assert float(paired_loss(f, p)) == pytest.approx(sum(gaps) / len(gaps))


@contextmanager
def fixed_view(adapter: TestDG, view: Tensor) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(adapter, "augment", lambda *_: view)
        yield


def test_in_the_first_domain_an_image_is_paired_with_its_own_view(vit: VisionModel) -> None:
    """The view is the image itself and student and teacher are equal, so that every pair is one point."""
    adapter = released(vit, amplifier_learning_rate=0.0)
    adapter.batches = 20
    images = stream(adapter, 1)[0]
    with fixed_view(adapter, adapter.model.prepare(images)):
        adapter(images)
    assert float(adapter.diagnostics["invariance_loss"]) == pytest.approx(0, abs=1e-6)
    text = make(vit, amplifier_learning_rate=0.0)
    with fixed_view(text, text.model.prepare(images)):
        text(images)
    assert float(text.diagnostics["invariance_loss"]) > 1e-3


def test_l_dis_reaches_the_extractor_through_both_sets(vit: VisionModel) -> None:
    """The gradient of step 1 in the first domain, by plain torch."""
    adapter = released(vit, self_training=False)
    images = stream(adapter, 1)[0]
    view = adapter.model.prepare(images).flip(3)
    weight = adapter.extractor[0].weight
    with torch.no_grad():
        logits, others = vit(images).logits, vit(view).logits
    w = weight.detach().clone().requires_grad_(True)
    last = adapter.extractor[2].weight.detach()

    def judged(read: Tensor) -> Tensor:
        return adapter.discriminator(F.gelu(read @ w.T) @ last.T)  # type: ignore[no-any-return]

    ones = F.binary_cross_entropy_with_logits(judged(logits), torch.ones(len(images), 1))
    zeros = F.binary_cross_entropy_with_logits(judged(others), torch.zeros(len(images), 1))
    (expected,) = torch.autograd.grad((ones + zeros) / 2, w)
    with fixed_view(adapter, view):
        adapter(images)
    # after one step of Adam the first moment is a tenth of the gradient
    found = moments(adapter.domain_learner.optimizer)
    torch.testing.assert_close(found["0.exp_avg"] * 10, expected, rtol=1e-3, atol=1e-7)


@pytest.mark.parametrize("as_released", [False, True])
def test_only_the_code_pauses_invariance(vit: VisionModel, as_released: bool) -> None:
    adapter = make(vit, as_released=as_released)
    images, seen = stream(adapter, 1)[0], {}
    for number in (0, 1, 19, 20, 49, 50, 69, 70, 120):
        adapter.batches = number
        adapter(images)
        seen[number] = "invariance_loss" in adapter.diagnostics
    assert [number for number, found in seen.items() if found] == ([20, 49, 70, 120] if as_released else list(seen))


# 4: where training starts


def test_networks(vit: VisionModel) -> None:
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


def test_embeddings_of_the_code_are_larger_than_those_of_a_usual_start() -> None:
    """Both layers together: sqrt(3 / 20) sqrt(3 / 4) against sqrt(1 / 10) sqrt(1 / 20)."""
    ratio = ((3 / 20) * (3 / 4) / (1 / 10 / 20)) ** 0.5
    assert ratio == pytest.approx(4.7, abs=0.05)


def test_the_amplifier_starts_smaller(vit: VisionModel) -> None:
    adapter = released(vit, rank=16)
    assert adapter.amplifier is not None
    for down in adapter.amplifier.down.values():
        assert float(down.detach().std()) == pytest.approx(1 / 16**2, rel=0.1)
    assert pytest.approx(340, abs=2) == (1 / 3 / 768) ** 0.5 * 128**2  # ViT-B/16, text to code


# 5: queue, detector, one step for both phases


def test_embeddings_enter_the_queue_before_the_step(vit: VisionModel) -> None:
    adapter = released(vit)
    images = stream(adapter, 1)[0]
    expected = adapter.embed(images)
    adapter(images)
    torch.testing.assert_close(adapter.queue.content()[0], expected)
    assert not torch.allclose(adapter.embed(images), expected, atol=1e-3)


def test_the_queue_after_a_change_begins_with_the_second_batch_of_the_domain(vit: VisionModel) -> None:
    """A jump is found in the batch that brings it; the code acts when the next one comes."""
    for as_released, first in ((False, 18), (True, 24)):
        adapter = make(vit, as_released=as_released)
        for k, images in enumerate(stream(adapter, 6, 6)[:5]):
            adapter.detector.threshold = -1.0 if k == 3 else 10.0
            adapter(images)
        assert int(adapter.queue.content()[1].min()) == first


@pytest.mark.parametrize(
    ("program", "passes"), [("cifar10-c", [0, 2, 3]), ("imagenet-c", [0, 2, 3]), ("cifar100-c", [0, 1])]
)
def test_passes_between_the_updates(vit: VisionModel, program: str, passes: list[int]) -> None:
    """On CIFAR100-C amplifier and encoder move together: every pass of the student comes before that."""
    adapter, batches = second_domain(vit, as_released=True, released_for=program, symmetric=True)
    updates: list[int] = []
    with watched(adapter) as log:
        handle = adapter.model.network.register_forward_hook(lambda *_: updates.append(len(log)))
        adapter(next(batches))
    handle.remove()
    assert [name for name, _ in log] == ["domain_learner", "amplifier_learner", "encoder_learner"]
    assert updates == passes


def test_the_amplifier_learns_self_training(vit: VisionModel) -> None:
    for as_released, expected in ((False, set()), (True, {"amplifier", "teacher_amplifier"})):
        adapter = make(vit, as_released=as_released, symmetric=True, discrimination=False, invariance=False)
        before = copied(adapter)
        adapter(stream(adapter, 1)[0])
        assert moved(adapter, before) == {"model", "teacher"} | expected


# 6: prototypes


def test_chosen_prototypes_serve_one_l_dis_and_become_noise(vit: VisionModel) -> None:
    adapter = released(vit, prototype_learning_rate=0.01, prototype_steps=2)
    batches = stream(adapter, 3, 6)
    for images in batches[:2]:
        adapter(images)
    queue, current = adapter.queue.content()[0].clone(), adapter.embed(batches[2])
    first, second, last = ((layer.weight.clone(), layer.bias.clone()) for layer in adapter.discriminator[::2])
    noise = torch.Generator()
    noise.set_state(adapter.generator.get_state())
    change(adapter, batches[2])

    def judged(x: Tensor) -> Tensor:
        return F.linear(F.linear(F.linear(x, *first).relu(), *second).relu(), *last)

    chosen = queue[adapter.prototypes.positions]  # the queue holds the whole stream until now
    ones = F.binary_cross_entropy_with_logits(judged(current), torch.ones(6, 1))
    zeros = F.binary_cross_entropy_with_logits(judged(chosen), torch.zeros(8, 1))
    assert float(adapter.diagnostics["discrimination_loss"]) == pytest.approx(float(ones + zeros) / 2, rel=1e-4)
    _, after_step_2 = (torch.randn(8, 4, generator=noise) for _ in range(2))
    assert float((adapter.prototypes.current - after_step_2).abs().max()) <= 2 * 0.01 + 1e-6


# 7: the weight of L_dis


@pytest.mark.parametrize("as_released", [False, True])
def test_only_in_the_code_the_weight_of_l_dis_matters(vit: VisionModel, as_released: bool) -> None:
    """Adam divides the weight of a lone loss out; in the code it weighs L_dis against L_self."""
    found = []
    for weight in (1.0, 100.0):
        adapter = make(vit, as_released=as_released, symmetric=True, discrimination_weight=weight)
        adapter(stream(adapter, 1)[0])
        assert adapter.amplifier is not None
        found.append(torch.cat([p.detach().flatten() for p in adapter.amplifier.up.values()]))
    same = float(((found[0] - found[1]).abs() < 1e-4).float().mean())  # of steps of 2e-3
    assert same < 0.9 if as_released else same > 0.95
