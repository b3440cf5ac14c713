"""DePT: where its prompts go, what it learns by, and one batch by the book."""

import copy
import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import transformers
from torch import Tensor

from support.literal import assert_close, average
from support.networks import segformer
from testdg.methods.dept.method import (
    Centre,
    Dept,
    Neighbours,
    Projection,
)
from testdg.methods.dept.prompts import add_prompts
from testdg.methods.parts.added_layers import added_layers, watched
from testdg.models import Preprocessing, VisionModel, load_model
from testdg.testing import stream

CPU = torch.device("cpu")
FREE: dict[str, Any] = {"source_images": 0, "prompts": 5}


# Prompts


def test_prompts_of_vit_base_are_as_published() -> None:
    with torch.device("meta"):
        network = transformers.ViTForImageClassification(transformers.ViTConfig(num_labels=12))
    model = load_model(network.to_empty(device="cpu"), preprocessing=Preprocessing((224, 224)))
    head = sum(p.numel() for p in network.classifier.parameters())
    for stages, values in ((4, 162_828), (12, 470_028)):
        copied = copy.deepcopy(model)
        add_prompts(copied, stages, 50, torch.Generator().manual_seed(0))
        parts = added_layers(copied)
        assert sum(p.numel() for p in parts.parameters()) + head == values
    bound = max(float(part.tokens.detach().abs().max()) for part in parts)
    assert bound == pytest.approx(0.012377, rel=1e-2)


def test_a_pass_by_the_book(vit: VisionModel) -> None:
    """Each stage gets its prompts before all other tokens, and gives them up at its end."""
    adapter = Dept(vit, **FREE)
    images = stream(adapter, 1)[0]
    network: Any = vit.network
    with torch.no_grad():
        x = network.patches(vit.normalise(images)).flatten(2).mT
        x = torch.cat([network.token.expand(6, -1, -1), x], 1) + network.position
        left = []
        for part, block in zip(added_layers(adapter.model), network.blocks, strict=True):
            x = block(torch.cat([part.tokens.expand(6, -1, -1), x], 1))
            left.append(x[:, :5])
            x = x[:, 5:]
        expected = network.head(network.norm(x[:, 0]))
    torch.testing.assert_close(adapter.predict(images), expected, rtol=1e-4, atol=1e-5)
    assert not torch.allclose(expected, vit(images).logits, atol=1e-4)
    with watched(adapter.model) as seen, torch.no_grad():
        adapter.model(images)
    for (found,), mine in zip(seen, left, strict=True):
        torch.testing.assert_close(found, mine, rtol=1e-4, atol=1e-5)
    assert adapter.norm == "network.norm"
    found_prompts = adapter._see(adapter.model, adapter.projections, images).prompts
    torch.testing.assert_close(found_prompts[-1], adapter.projections[-1](network.norm(left[-1])), rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(found_prompts[0], adapter.projections[0](left[0]), rtol=1e-3, atol=1e-4)


def test_segformer_prompts_are_keys_and_values_against_a_literal_attention() -> None:
    model = segformer()
    adapter = Dept(model, **FREE)
    images = torch.rand(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    kept: dict[str, Tensor] = {}
    attention = next(m for m in adapter.model.modules() if type(m).__name__.endswith("Attention"))
    query, key, value, output = (layer for layer in attention.modules() if isinstance(layer, torch.nn.Linear))
    for name, layer in zip("qkv", (query, key, value), strict=True):
        layer.register_forward_hook(lambda _, inputs, out, name=name: kept.update({name: inputs[0]}))
    output.register_forward_hook(lambda _, inputs, out: kept.update(o=out))
    with torch.no_grad():
        adapter.model(images)
        tokens = added_layers(adapter.model)[0].tokens.expand(2, -1, -1)
        q = F.linear(kept["q"], query.weight, query.bias)  # one head in the first stage
        k, v = (
            F.linear(torch.cat([kept[n], tokens], 1), layer.weight, layer.bias)
            for n, layer in (("k", key), ("v", value))
        )
        shares = (q.double() @ k.double().mT / math.sqrt(q.shape[2])).softmax(2)
        expected = F.linear((shares @ v.double()).float(), output.weight, output.bias)
    torch.testing.assert_close(kept["o"], expected, rtol=1e-4, atol=1e-5)


# Losses


def test_the_centre_against_loops() -> None:
    centre = Centre(4, CPU)  # 32 wide
    generator = torch.Generator().manual_seed(0)
    student, teacher = torch.randn(2, 3, 32, generator=generator)
    value = [0.0] * 32
    for _ in range(2):
        total = 0.0
        for s, t in zip(student.tolist(), teacher.tolist(), strict=True):
            q = [math.exp((a - c) / 0.07) for a, c in zip(t, value, strict=True)]
            z = sum(math.exp(a / 0.1) for a in s)
            total -= sum(a / sum(q) * (b / 0.1 - math.log(z)) for a, b in zip(q, s, strict=True)) / 3
        assert float(centre.loss(student, teacher)) == pytest.approx(total, rel=1e-4)
        value = [0.9 * c + 0.1 * float(teacher[:, k].mean()) for k, c in enumerate(value)]
        assert centre.value.tolist() == pytest.approx(value, abs=1e-5)


def test_projections_end_in_cosines() -> None:
    project = Projection(6, torch.Generator().manual_seed(0), CPU)
    found = project(torch.randn(5, 6, generator=torch.Generator().manual_seed(1)))
    assert found.shape == (5, 48)
    assert float(found.detach().abs().max()) <= 1
    assert sum(p.numel() for p in Projection(768, torch.Generator(), CPU).parameters()) == (
        768 * 2048 + 2048 + 2048 * 256 + 256 + 256 * 2048
    )


def test_neighbours_against_scikit_learn() -> None:
    from sklearn.neighbors import NearestNeighbors

    bank = Neighbours(8, 3, 4, CPU)
    generator = torch.Generator().manual_seed(0)
    rows, p = torch.randn(13, 3, generator=generator), torch.rand(13, 4, generator=generator)
    for start, end in ((0, 3), (3, 9), (9, 13)):
        bank.add(rows[start:end], p[start:end])
    kept, theirs = rows[-8:].numpy(), p[-8:]
    asked = torch.randn(20, 3, generator=generator)
    _, near = NearestNeighbors(n_neighbors=3, metric="cosine").fit(kept).kneighbors(asked.numpy())
    expected = theirs[torch.from_numpy(near)].mean(1).argmax(1)
    assert torch.equal(bank.label(asked, 3), expected)
    assert bank.label(asked, 50).shape == (20,)


# One batch


def by_the_book(adapter: Dept, images: Tensor, optimizer: torch.optim.Optimizer) -> Tensor:
    """One step in the released order, but for the entries of the batch, which are remembered first."""
    s, model, teacher = adapter.settings, adapter.model, adapter.teacher
    with torch.no_grad():
        plain = model(images)
        theirs = adapter._see(teacher, adapter.teacher_projections, adapter.augment(images, adapter.generator))
    mine_ = adapter._see(model, adapter.projections, adapter.augment(images, adapter.generator))
    with torch.no_grad():
        entry = teacher(images)
        adapter.bank.add(entry.features, entry.logits.softmax(1))
        held = min(adapter.bank.count, s.capacity)
        labels = []
        for f in plain.features:
            cosine = F.cosine_similarity(adapter.bank.features[:held], f[None])
            near = cosine.argsort(descending=True)[: s.neighbours]
            labels.append(int(adapter.bank.predictions[near].mean(0).argmax()))
    logits = mine_.output.logits
    p_bar = logits.softmax(1).mean(0)
    loss = F.cross_entropy(logits, torch.tensor(labels)) + (p_bar * (p_bar + 1e-8).log()).sum()
    loss = loss + 0.1 * adapter.centre.loss(mine_.feature, theirs.feature)
    weights = [math.exp(1) / (math.exp(1) + math.exp(2)), math.exp(2) / (math.exp(1) + math.exp(2))]
    for weight, a, b in zip(weights, mine_.prompts, theirs.prompts, strict=True):
        loss = loss + 0.1 * weight * (1 - F.cosine_similarity(a, b, dim=2)).mean()
        pairs = 1 - F.cosine_similarity(a[:, :, None], a[:, None], dim=3)
        pairs = pairs * (1 - torch.eye(a.shape[1]))
        loss = loss - 0.05 * weight * pairs.mean()
    optimizer.zero_grad()
    loss.backward()
    for parameter in adapter.learner.parameters_[: adapter.tuned]:
        torch.nn.utils.clip_grad_norm_([parameter], 1.0)
    optimizer.step()
    average(teacher, model, s.momentum)
    average(adapter.teacher_projections, adapter.projections, s.momentum)
    return plain.logits


def test_three_batches_by_the_book(vit: VisionModel) -> None:
    adapter, other = (Dept(vit, **FREE, learning_rate=0.05, neighbours=3, capacity=16) for _ in range(2))
    optimizer = torch.optim.SGD(other.learner.parameters_, lr=0.05, momentum=0.9, nesterov=True, weight_decay=1e-4)
    for images in stream(adapter, 3):
        torch.testing.assert_close(adapter(images), by_the_book(other, images, optimizer), rtol=1e-3, atol=1e-4)
    assert_close(adapter, other, rtol=1e-2, atol=1e-4)


def test_prompts_begin_beside_the_mean_of_the_tokens_that_enter_their_stage(vit: VisionModel) -> None:
    fresh, adapter = Dept(vit, **FREE), Dept(vit, **{**FREE, "source_images": 6}, warm_up_learning_rate=0.0)
    images = stream(adapter, 1, 6)[0]
    adapter.warm_up([(images, torch.arange(6))])
    entered: list[Tensor] = []
    for block in adapter.model.network.blocks:  # type: ignore[union-attr]
        block.register_forward_hook(lambda _, inputs, __: entered.append(inputs[0]))  # type: ignore[operator]
    adapter.predict(images)
    for before, now, tokens in zip(added_layers(fresh.model), added_layers(adapter.model), entered, strict=True):
        mean = tokens[:, 5:].double().mean((0, 1))
        torch.testing.assert_close((now.tokens - before.tokens).double(), mean.expand(5, -1), rtol=1e-4, atol=1e-5)
