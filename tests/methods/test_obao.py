"""OBAO: its buffer, its graph of classes, and one batch by the book."""

import dataclasses
import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from support.errors import refused
from support.literal import average
from support.networks import confident, segformer
from testdg.methods.obao import CertainMemory, Obao, relation_loss
from testdg.models import VisionModel
from testdg.testing import stream

CPU = torch.device("cpu")


# The buffer


def offer(memory: CertainMemory, *entropies: float, limit: float = 10.0) -> list[float]:
    values = torch.tensor(entropies)
    memory.add(values.view(-1, 1, 1, 1), (values * 10).long(), values, values < limit)
    return sorted(round(float(value), 4) for value in memory.entropies if math.isfinite(value))


@settings(max_examples=40, deadline=None)
@given(
    batches=st.lists(st.lists(st.integers(1, 99), min_size=1, max_size=5, unique=True), min_size=1, max_size=6),
    strict=st.booleans(),
)
def test_the_buffer_against_a_list(batches: list[list[int]], strict: bool) -> None:
    memory, held = CertainMemory(4, CPU, strict), list[float]()
    for batch in batches:
        new = sorted(value / 100 for value in batch if value < 80)[:4]
        if strict:
            held = sorted(held + new)[:4]
        else:
            room = 4 - len(held)
            held = sorted(held)[: len(held) - max(0, len(new) - room)] + new
        found = offer(memory, *(value / 100 for value in batch), limit=0.8)
        assert found == pytest.approx(sorted(held), abs=1e-4)
        assert int(memory.filled()) == len(held)
    for image, label, entropy in zip(memory.images, memory.labels, memory.entropies, strict=True):
        if math.isfinite(entropy):  # image, label and entropy stay together
            assert float(image) == float(entropy)
            assert int(label) == int(torch.tensor(float(entropy)) * 10)


def test_draws_are_without_replacement_and_never_empty() -> None:
    memory = CertainMemory(6, CPU)
    offer(memory, 0.11, 0.22, 0.33)
    generator = torch.Generator().manual_seed(0)
    seen = set()
    for _ in range(30):
        images, labels = memory.draw(2, generator)
        values = [round(float(image), 2) for image in images]
        assert len(set(values)) == 2
        assert labels.tolist() == [int(10 * value) for value in values]
        seen |= set(values)
    assert seen == {0.11, 0.22, 0.33}


# The graph


def test_the_relation_loss_by_hand() -> None:
    source = torch.tensor([[1, 0.5, 0.2], [0.5, 1, 0.1], [0.2, 0.1, 1]])
    current = torch.tensor([[1, 0.3, 0.4], [0.3, 1, 0.2], [0.4, 0.2, 1]])
    everyone = torch.ones(3, dtype=torch.bool)
    assert float(relation_loss(source, current, everyone)) == pytest.approx(-0.974934, abs=1e-6)
    assert float(relation_loss(source, source, everyone)) == pytest.approx(-1)
    two = torch.tensor([True, False, True])
    expected = -(2 + 2 * 0.2 * 0.4) / math.sqrt((2 + 2 * 0.04) * (2 + 2 * 0.16))
    assert float(relation_loss(source, current, two)) == pytest.approx(expected)
    assert float(relation_loss(source, current, torch.tensor([True, False, False]))) == 0


# One batch


def by_the_book(adapter: Obao, images: Tensor, buffer: list[tuple[Tensor, int, float]], optimizer: Any) -> Tensor:
    """The step as the sheet of the released code orders it; the buffer is smaller than a batch, so all is drawn."""
    s, model = adapter.settings, adapter.model
    logits, view = model(images).logits, model(adapter.augment(images, adapter.generator)).logits
    with torch.no_grad():
        taught = adapter.teacher(images).logits

    def sce(p: Tensor, q: Tensor) -> Tensor:
        return -0.5 * (q.softmax(1) * p.log_softmax(1)).sum(1) - 0.5 * (p.softmax(1) * q.log_softmax(1)).sum(1)

    loss = (0.5 * sce(logits, taught) + 0.5 * sce(view, taught)).mean()
    if buffer:
        output = model(torch.stack([image for image, _, _ in buffer]))
        labels = [label for _, label, _ in buffer]
        loss = loss + s.replay * F.cross_entropy(output.logits, torch.tensor(labels))
        present = sorted(set(labels))
        rows = [
            torch.stack([f for f, y in zip(output.features, labels, strict=True) if y == c]).mean(0) for c in present
        ]
        if len(present) > 1:
            unit = [row / row.norm() for row in rows]
            g = torch.stack([torch.stack([a @ b for b in unit]) for a in unit])
            weight = adapter.model.network.get_submodule("head").get_parameter("weight")[present]
            unit_weight = weight / weight.norm(dim=1, keepdim=True)
            ref = unit_weight @ unit_weight.T
            loss = loss - s.relation * (ref * g).sum() / ((ref**2).sum() * (g**2).sum()).sqrt()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    h = -(logits.softmax(1) * logits.log_softmax(1)).sum(1).detach()
    for k in range(len(images)):
        if float(h[k]) < s.margin * math.log(10):
            buffer.append((images[k], int((logits[k] + taught[k]).argmax()), float(h[k])))
    buffer.sort(key=lambda entry: entry[2])
    del buffer[s.capacity :]
    average(adapter.teacher, model, s.momentum)
    return (logits + taught).detach() / 2


def test_three_batches_by_the_book(vit: VisionModel) -> None:
    model = confident(vit, 10.0)
    options = {
        "learning_rate": 0.01,
        "optimizer": "sgd",
        "margin": 0.75,
        "capacity": 5,
        "momentum": 0.9,
        "relation": 3.0,
    }
    adapter, other = Obao(model, **options), Obao(model, **options)
    optimizer = torch.optim.SGD(other.learner.parameters_, lr=0.01, momentum=0.9, nesterov=True)
    buffer: list[tuple[Tensor, int, float]] = []
    for images in stream(adapter, 4, 8):
        state = other.generator.get_state()
        expected = by_the_book(other, images, buffer, optimizer)
        assert not torch.equal(state, other.generator.get_state())
        torch.testing.assert_close(adapter(images), expected, rtol=1e-3, atol=1e-3)
        other.generator.set_state(adapter.generator.get_state())  # the book draws nothing from the buffer
    assert len(buffer) == 5
    assert float(adapter.diagnostics["replay"]) > 0
    held = sorted(float(value) for value in adapter.memory.entropies)
    assert held == pytest.approx([entropy for _, _, entropy in buffer], rel=1e-2)


def test_prototypes_of_source_images_make_the_graph(vit: VisionModel) -> None:
    adapter = Obao(vit, graph="prototypes", source_images=12)
    batches = stream(adapter, 2, 6)
    with refused("no-source-data"):
        adapter(batches[0])
    labels = torch.tensor([0, 1, 2, 0, 1, 2])
    adapter.warm_up((images, labels) for images in batches)
    with torch.no_grad():
        features = torch.cat([vit(images).features for images in batches])
    rows = torch.stack([features[labels.repeat(2) == c].mean(0) for c in range(3)])
    expected = F.cosine_similarity(rows[:, None], rows[None], dim=2)
    torch.testing.assert_close(adapter.source_graph[:3, :3], expected, rtol=1e-4, atol=1e-5)
    assert adapter(batches[0]).shape == (6, 10)


def test_images_of_another_size_are_refused_before_anything_changes(cnn: VisionModel) -> None:
    cnn.preprocessing = dataclasses.replace(cnn.preprocessing, size=None)
    adapter = Obao(cnn, margin=1.1)
    adapter(torch.rand(2, 3, 16, 16))
    with refused("image-shape", "16", "20"):
        adapter(torch.rand(2, 3, 16, 20))
    assert adapter.batches == 1


# Segmentation


def test_a_map_by_the_book() -> None:
    model = confident(segformer(), 3000.0)
    options = {"learning_rate": 0.1, "optimizer": "sgd", "margin": 0.5, "relation": 0.7, "threshold": 0.4}
    adapter, other = Obao(model, **options), Obao(model, **options)
    images = stream(adapter, 1, 2)[0]
    seen: list[Tensor] = []
    handle = other.model.network.get_submodule("decode_head.classifier").register_forward_hook(
        lambda _, inputs, output: seen.extend((inputs[0], output))
    )
    taught = adapter(images)
    loss = F.cross_entropy(other.model(images).logits, taught.argmax(1))
    handle.remove()
    features, scores = seen[-2].movedim(1, -1).reshape(-1, 16), seen[-1].movedim(1, -1).reshape(-1, 5)
    h = -(scores.softmax(1) * scores.log_softmax(1)).sum(1)
    sure = h < 0.5 * math.log(5)
    assert 0 < int(sure.sum()) < len(h)
    loss = loss + F.cross_entropy(scores[sure], scores[sure].argmax(1))
    labels = scores.argmax(1)
    present = sorted(set(labels[sure].tolist()))
    assert len(present) > 1
    rows = torch.stack([features[sure & (labels == c)].mean(0) for c in present])
    weight = model.network.get_submodule("decode_head.classifier").get_parameter("weight")[present, :, 0, 0]
    g, ref = (F.cosine_similarity(r[:, None], r[None], dim=2) for r in (rows, weight.detach()))
    loss = loss - 0.7 * (ref * g).sum() / ((ref**2).sum() * (g**2).sum()).sqrt()
    gradients = torch.autograd.grad(loss, other.learner.parameters_)
    for now, start, gradient in zip(adapter.learner.parameters_, other.learner.parameters_, gradients, strict=True):
        torch.testing.assert_close(now, start - 0.19 * gradient, rtol=1e-3, atol=1e-4)  # Nesterov's first step
