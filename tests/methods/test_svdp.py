"""SVDP: where its prompts lie, how they learn, and one batch by the book."""

import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from support.errors import refused
from support.networks import confident, segformer
from testdg.core.weights import weights_and_biases
from testdg.methods.svdp import SparsePrompts, Svdp, dropout_uncertainty, variation
from testdg.testing import stream

CPU = torch.device("cpu")
ONE = torch.ones(3, 1, 1)


def prompts_of(count: int) -> SparsePrompts:
    prompts = SparsePrompts(count, 3, CPU)
    with torch.no_grad():
        prompts.offsets.normal_(generator=torch.Generator().manual_seed(1))
    return prompts


# Placement


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 1000), count=st.integers(1, 8), height=st.integers(1, 5), width=st.integers(2, 5))
def test_the_most_uncertain_pixel_gets_the_last_prompt(seed: int, count: int, height: int, width: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    images = torch.rand(2, 3, height, width, generator=generator)
    uncertainty = torch.rand(2, height, width, generator=generator)
    std = torch.tensor([0.5, 1.0, 2.0]).view(3, 1, 1)
    prompts = prompts_of(count)
    expected = images.clone()
    for n in range(2):
        ranked = sorted(
            ((float(uncertainty[n, y, x]), y, x) for y in range(height) for x in range(width)), reverse=True
        )
        for rank, (_, y, x) in enumerate(ranked[:count]):
            expected[n, :, y, x] += prompts.offsets[count - 1 - rank].detach() * std.flatten()
    torch.testing.assert_close(prompts(images, uncertainty, std).detach(), expected)


def test_the_published_number_of_values() -> None:
    assert int(540 * 960 * 1e-4) == 51
    adapter = Svdp(segformer(), **Svdp.presets["acdc"])
    assert adapter.prompts.offsets.numel() == 153


# Uncertainty


def test_the_variation_of_two_maps_by_hand() -> None:
    maps = torch.tensor([[0.9, 0.1], [0.5, 0.5]]).view(2, 1, 2, 1, 1)
    found = variation(maps)
    assert float(found) == pytest.approx(0.08)
    adapter = Svdp(segformer(), scale=0.1, momentum=0.999)
    assert 1 - float(adapter.prompt_share(found)) == pytest.approx(0.991)
    assert float(adapter.prompt_share(torch.full((1,), 1e9))) == 1
    assert float(adapter.prompt_share(torch.full((1,), math.nan))) == 0


def test_dropout_before_the_classifier_against_the_whole_decoder() -> None:
    """The same masks in the network's own dropout layer, pass by pass through the whole network."""
    model = confident(segformer(), 300.0)
    images = stream(Svdp(model), 1, 2)[0]
    found = dropout_uncertainty(model, images, 4, 0.5, torch.Generator().manual_seed(7))
    generator = torch.Generator().manual_seed(7)

    def drop(_: object, inputs: tuple[Tensor, ...], __: object) -> Tensor:
        return inputs[0] * (torch.rand(inputs[0].shape, generator=generator) >= 0.5) * 2

    handle = model.network.get_submodule("decode_head.dropout").register_forward_hook(drop)
    with torch.no_grad():
        maps = [model(images).logits.double().softmax(1) for _ in range(4)]
    handle.remove()
    mean = sum(maps) / 4
    expected = sum((p - mean) ** 2 for p in maps).sum(1) / 4  # type: ignore[union-attr]
    torch.testing.assert_close(found.double(), expected, rtol=1e-3, atol=1e-5)
    assert float(found.max()) > 1e-3


# One batch


def by_the_book(adapter: Svdp, images: Tensor) -> Tensor:
    """The labels, view by view: prompts are placed again for each size, and mirrored with the image."""
    s, model = adapter.settings, adapter.model
    unsure = dropout_uncertainty(adapter.teacher, images, s.passes, s.dropout, adapter.generator)
    total = torch.zeros(len(images), 5, 32, 32)
    with torch.no_grad():
        for ratio in (0.5, 0.75, 1.0, 1.25, 1.5, 1.75, 2.0):
            side = int(32 * ratio)
            view, there = (
                F.interpolate(x, (side, side), mode="bilinear", antialias=side < 32) for x in (images, unsure[:, None])
            )
            for turn in (lambda x: x, lambda x: x.flip(-1)):
                decorated = adapter.teacher_prompts(turn(view), turn(there)[:, 0], model.std)
                logits = F.interpolate(adapter.teacher(decorated).logits, (32, 32), mode="bilinear")
                total += turn(logits.softmax(1)) / 14
        plain = adapter.teacher(adapter.teacher_prompts(images, unsure, model.std)).logits.softmax(1)
        sure = adapter.anchor(images).logits.softmax(1).amax(1, keepdim=True) > s.threshold
    return torch.where(sure, plain, total)


def test_labels_by_the_book() -> None:
    model = confident(segformer(), 1000.0)
    adapter, other = (Svdp(model, as_released=True, prompts=20, threshold=0.4) for _ in range(2))
    images = stream(adapter, 1, 2)[0]
    expected = by_the_book(other, images)
    found = adapter(images)
    torch.testing.assert_close(found.softmax(1), expected, rtol=1e-3, atol=1e-4)


def test_prompts_learn_and_as_released_they_never_do() -> None:
    for as_released in (False, True):
        options = {"prompt_learning_rate": 1e-2, "momentum": 0.5, "as_released": as_released}
        adapter = Svdp(segformer(), **options, prompts=30)
        start = adapter.prompts.offsets.detach().clone()
        assert bool(start.any()) is as_released
        for images in stream(adapter, 2, 2):
            adapter(images)
        assert torch.equal(adapter.prompts.offsets.detach(), start) is as_released
        assert torch.equal(adapter.teacher_prompts.offsets, start) is as_released


def test_the_teachers_prompts_move_by_the_uncertainty() -> None:
    adapter = Svdp(segformer(), prompt_learning_rate=1e-2, momentum=0.9, scale=50.0, prompts=30)
    images = stream(adapter, 1, 2)[0]
    adapter(images)
    share = float(adapter.diagnostics["prompt_share"])
    assert share == pytest.approx(0.1 + 50 * float(adapter.diagnostics["uncertainty"]), rel=1e-4)
    expected = share * adapter.prompts.offsets.detach()
    torch.testing.assert_close(adapter.teacher_prompts.offsets, expected)


def test_weights_are_restored_and_prompts_are_not() -> None:
    model = segformer()
    adapter = Svdp(model, learning_rate=1e-2, prompt_learning_rate=1e-2, restore=1.0)
    adapter(stream(adapter, 1, 2)[0])
    pairs = zip(weights_and_biases(adapter.model), weights_and_biases(model), strict=True)
    assert all(torch.equal(now, old) for now, old in pairs)
    assert adapter.prompts.offsets.any()


def test_an_ordinary_model_cannot_hold_prompts() -> None:
    adapter = Svdp(segformer(), as_released=True)
    with refused("not-exportable"):
        adapter.adapted_model()
