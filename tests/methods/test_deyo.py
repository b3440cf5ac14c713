"""DeYO: destroyed images, the two filters and the weights."""

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from support.networks import confident
from testdg.methods.deyo import (
    DeYO,
    cover_centre,
    shuffle_pixels,
    shuffle_tiles,
)
from testdg.models import VisionModel
from testdg.testing import stream


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def tiles_of(image: Tensor, tiles: int) -> list[list[float]]:
    """The tiles of an image, each as a list of numbers, in order of their values."""
    height, width = image.shape[1] // tiles, image.shape[2] // tiles
    cut = [
        image[:, y * height : (y + 1) * height, x * width : (x + 1) * width] for y in range(tiles) for x in range(tiles)
    ]
    return sorted(tile.flatten().tolist() for tile in cut)


@settings(deadline=None, max_examples=30)
@given(st.integers(1, 5), st.integers(1, 4), st.integers(1, 4), st.integers(0, 2**16))
def test_every_tile_is_kept(tiles: int, height: int, width: int, seed: int) -> None:
    images = torch.rand(2, 3, tiles * height, tiles * width, generator=generator(seed))
    for before, after in zip(images, shuffle_tiles(images, tiles, generator(seed)), strict=True):
        assert tiles_of(before, tiles) == tiles_of(after, tiles)


def test_each_image_has_an_order_of_its_own_and_any_size_will_do() -> None:
    image = torch.rand(1, 3, 32, 32, generator=generator())
    one, other = shuffle_tiles(image.expand(2, -1, -1, -1), 4, generator())
    assert not torch.equal(one, other)
    assert shuffle_tiles(torch.rand(2, 3, 33, 30), 4, generator()).shape == (2, 3, 33, 30)
    assert torch.equal(shuffle_tiles(image, 1, generator()), image)


def test_the_centre_becomes_the_mean_and_pixels_lose_their_place() -> None:
    images = torch.rand(2, 3, 224, 224, generator=generator())
    covered = cover_centre(images)
    torch.testing.assert_close(covered[1, 2, 56:168, 56:168], images[1, 2].mean().expand(112, 112))
    assert int((covered != images).any(1).sum()) == 2 * 112 * 112
    mixed = shuffle_pixels(images, generator())
    torch.testing.assert_close(mixed.flatten(2).sort(2).values, images.flatten(2).sort(2).values)
    assert not torch.equal(mixed, images)


def test_a_step_is_the_formula(vit: VisionModel) -> None:
    model = confident(vit, 5.0)
    adapter, twin = (DeYO(model, learning_rate=0.1, least_difference=0.0) for _ in range(2))
    images = stream(adapter, 1, 12)[0]
    adapter(images)
    logits = twin.model(images).logits.double()
    rest = twin.model(twin.destroyed(images)).logits.double().softmax(1)
    terms: list[Tensor] = []
    for row, other in zip(logits.softmax(1), rest, strict=True):
        unsure, label = -(row * row.log()).sum(), int(row.argmax())
        lost = float(row[label].detach() - other[label].detach())
        if float(unsure.detach()) < 0.5 * math.log(10) and lost > 0:
            terms.append((math.exp(0.4 * math.log(10) - float(unsure.detach())) + math.exp(lost)) * unsure)
    assert 0 < len(terms) < 12
    assert int(adapter.diagnostics["learnt_from"]) == len(terms)
    gradients = torch.autograd.grad(sum(terms, torch.zeros(())) / len(terms), twin.learner.parameters_)
    for moved, old, gradient in zip(adapter.learner.parameters_, twin.learner.parameters_, gradients, strict=True):
        torch.testing.assert_close(moved, old - 0.1 * gradient, rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("options", [{"tiles": 1}, {"margin": 0.0}], ids=["nothing is destroyed", "nothing is sure"])
def test_what_no_image_passes_teaches_nothing(vit: VisionModel, options: dict[str, Any]) -> None:
    adapter = DeYO(confident(vit, 20.0), learning_rate=0.1, least_difference=0.0)
    batches = stream(adapter, 2)
    adapter(batches[0])
    assert int(adapter.diagnostics["learnt_from"]) > 0  # there is momentum
    other = DeYO(vit, learning_rate=0.1, least_difference=0.0, **options)
    tensors, values = adapter.tensors(), adapter.values()
    other.load_state(tensors, values)
    other(batches[1])
    after = other.tensors()
    assert [name for name in tensors if name != "generator" and not torch.equal(after[name], tensors[name])] == []
