"""RoTTA: the memory against a literal one, slow statistics, and when it learns."""

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from support.passes import counted
from testdg.core.learner import moments
from testdg.methods.parts.normalisation import SlowBatchNorm
from testdg.methods.rotta import BalancedMemory, Rotta
from testdg.models import VisionModel
from testdg.testing import stream

CPU = torch.device("cpu")
Offers = list[tuple[int, float]]


def remembered(capacity: int, classes: int, offers: Offers) -> BalancedMemory:
    """A memory that was offered images whose one pixel is their number."""
    memory = BalancedMemory(capacity, classes, CPU)
    for number, (label, entropy) in enumerate(offers):
        memory.add(torch.full((1, 1, 1), float(number)), label, entropy)
    return memory


def literal_memory(capacity: int, classes: int, offers: Offers) -> dict[int, int]:
    """The rules, with classes as lists: number of each remembered image and its age."""
    held: list[list[dict[str, float]]] = [[] for _ in range(classes)]
    for number, (label, entropy) in enumerate(offers):
        new = {"number": number, "entropy": entropy, "age": 0.0}

        def badness(item: dict[str, float]) -> float:
            return 1 / (1 + math.exp(-item["age"] / capacity)) + item["entropy"] / math.log(classes)

        sizes = [len(items) for items in held]
        if sizes[label] < capacity / classes and sum(sizes) < capacity:
            held[label].append(new)
        else:
            full = [c for c in range(classes) if sizes[c] == max(sizes)]
            places = full if sizes[label] < capacity / classes else [label]
            worst = max(((badness(item), c, k) for c in places for k, item in enumerate(held[c])), default=None)
            if worst is not None and worst[0] > badness(new):
                del held[worst[1]][worst[2]]
                held[label].append(new)
        for items in held:
            for item in items:
                item["age"] += 1
    return {int(item["number"]): int(item["age"]) for items in held for item in items}


@given(st.integers(1, 9), st.integers(2, 5), st.integers(0, 60), st.randoms(use_true_random=False))
def test_the_memory_is_the_literal_one(capacity: int, classes: int, count: int, random: Any) -> None:
    offers = [(random.randrange(classes), random.random() * math.log(classes)) for _ in range(count)]
    memory = remembered(capacity, classes, offers)
    expected = literal_memory(capacity, classes, offers)
    if memory.items:
        images, ages = memory.content()
        numbers = [int(number) for number in images.flatten()]
        found = {n: round(float(a) * capacity) for n, a in zip(numbers, ages, strict=True)}
        assert found == expected
    else:
        assert not expected


def test_slow_statistics_go_a_share_of_the_way() -> None:
    slow, plain = SlowBatchNorm(3, momentum=0.05), nn.BatchNorm2d(3)
    images = 2 + 3 * torch.randn(4, 3, 5, 5, generator=torch.Generator().manual_seed(0))
    slow.eval()
    torch.testing.assert_close(slow(images), plain.eval()(images))
    slow.train()
    found = slow(images)
    mean = 0.05 * images.double().mean((0, 2, 3))
    variance = 0.95 + 0.05 * images.double().var((0, 2, 3), unbiased=False)
    torch.testing.assert_close(slow.running_mean.double(), mean, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(slow.running_var.double(), variance, rtol=1e-5, atol=1e-6)
    expected = (images - mean[:, None, None]) / (variance[:, None, None] + 1e-5).sqrt()
    torch.testing.assert_close(found.double(), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("size", [3, 8, 16])
def test_it_learns_every_so_many_images(vit: VisionModel, size: int) -> None:
    adapter = Rotta(vit, update_every=8, capacity=8)
    images = torch.cat(stream(adapter, 4, 6))  # 24 images: three updates, however they are cut
    with counted(adapter) as counts:
        for batch in images.split(size):
            adapter(batch)
    assert counts["backward"] == 3
    steps = next(value for name, value in moments(adapter.learner.optimizer).items() if name.endswith("step"))
    assert int(steps) == 3


def test_the_teacher_predicts_and_follows(vit: VisionModel) -> None:
    adapter = Rotta(vit, update_every=6, momentum=0.9, learning_rate=1e-2)
    images = stream(adapter, 1)[0]
    with torch.no_grad():
        torch.testing.assert_close(adapter(images), vit(images).logits)
    for student, teacher, source in zip(
        adapter.learner.parameters_, adapter.averaged, Rotta(vit).averaged, strict=True
    ):
        torch.testing.assert_close(teacher, 0.9 * source + 0.1 * student, rtol=1e-5, atol=1e-7)
        assert not torch.equal(student, source)


def test_statistics_of_a_cnn_follow_the_memory_and_stay_still_in_between(cnn: VisionModel) -> None:
    adapter = Rotta(cnn, update_every=12)
    batches = stream(adapter, 2)
    before = {name: value.clone() for name, value in adapter.teacher.named_buffers()}
    adapter(batches[0])
    assert all(torch.equal(value, before[name]) for name, value in adapter.teacher.named_buffers())
    adapter(batches[1])
    moved = {name for name, value in adapter.teacher.named_buffers() if not torch.equal(value, before[name])}
    assert len(moved) == 2 * 3


def test_a_step_is_the_formula(vit: VisionModel) -> None:
    adapter, twin = (Rotta(vit, update_every=6, capacity=60, learning_rate=0.1, optimizer="sgd") for _ in range(2))
    adapter(stream(adapter, 1)[0])
    held, ages = adapter.memory.content()
    view = twin.augment(held, twin.generator)
    terms = []
    for age, row, taught in zip(
        ages.double(), twin.model(view).logits.double(), vit(held).logits.double(), strict=True
    ):
        terms.append(-(taught.softmax(0) * row.log_softmax(0)).sum() / (1 + age.exp()))
    gradients = torch.autograd.grad(torch.stack(terms).mean(), twin.learner.parameters_)
    for moved, old, gradient in zip(adapter.learner.parameters_, twin.learner.parameters_, gradients, strict=True):
        torch.testing.assert_close(moved, old - 0.1 * 1.9 * gradient, rtol=1e-3, atol=1e-6)
