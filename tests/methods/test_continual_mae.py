"""Continual-MAE: one batch by the book, what is trained, and what it costs."""

import math
from collections import Counter
from typing import Any

import pytest
import torch
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from support.literal import assert_close, same
from support.networks import any_size, hugging_face
from testdg.methods.continual_mae import ContinualMAE, Patches, choose_hidden, find_patches, hog, replace
from testdg.models import Preprocessing, TinyViT, VisionModel, load_model
from testdg.testing import stream

BOOK: dict[str, Any] = {"views": 3, "learning_rate": 1e-3, "restore": 0.0, "as_released": True}


@pytest.fixture
def vit(vit: VisionModel) -> VisionModel:
    """A ViT whose last LayerNorm has a shape of its own: without one, the mean of a token is zero."""
    norm = vit.network.get_submodule("norm")
    with torch.no_grad():
        for number, parameter in enumerate(norm.parameters()):
            parameter.normal_(generator=torch.Generator().manual_seed(number))
    return vit


def by_the_book(adapter: ContinualMAE, images: Tensor, optimizer: torch.optim.Optimizer) -> Tensor:
    """The step as the released code orders it, token by token."""
    s, model = adapter.settings, adapter.model
    with torch.no_grad():
        means = []
        for _ in range(s.views):
            tokens = adapter.patches.run(model, adapter.augment(images, adapter.generator)).features
            means.append(tokens.flatten(2).mean(1).double())
        variance = torch.stack(means).var(0, unbiased=True)
        taught = model(images).logits
    count = int(s.mask * variance.shape[1])
    hidden = torch.zeros_like(variance, dtype=torch.bool)
    for row, values in zip(hidden, variance, strict=True):
        row[values.argsort(descending=True)[:count]] = True
    output = adapter.patches.run(model, images, hidden.view(-1, 1, *tokens.shape[-2:]), adapter.token)
    consistency = -(taught.softmax(1) * output.logits.log_softmax(1)).sum(1).mean()
    predicted = output.features.flatten(2).mT[hidden] @ adapter.decoder.weight[:, :, 0, 0].T + adapter.decoder.bias
    target = hog(images, tokens.shape[-2:]).flatten(2).mT[hidden]
    optimizer.zero_grad()
    (consistency + s.reconstruction_weight * (predicted - target).square().mean()).backward()
    optimizer.step()
    return taught


def test_three_batches_by_the_book(vit: VisionModel) -> None:
    adapter, other = ContinualMAE(vit, **BOOK), ContinualMAE(vit, **BOOK)
    optimizer = torch.optim.Adam(other.learner.parameters_, lr=1e-3)
    for images in stream(adapter, 3):
        torch.testing.assert_close(adapter(images), by_the_book(other, images, optimizer), rtol=1e-4, atol=1e-4)
    assert_close(adapter, other, rtol=1e-2, atol=3e-4)


def test_as_released_the_choice_is_the_most_uncertain_and_else_it_is_drawn(vit: VisionModel) -> None:
    """The same views, the same uncertainty: only the released choice is the top half."""

    def chosen(as_released: bool) -> tuple[Tensor, Tensor]:
        adapter = ContinualMAE(vit, as_released=as_released)
        images = stream(adapter, 1, 12)[0]
        seen: list[Tensor] = []
        run = adapter.patches.run
        uncertainty = adapter.uncertainty(images)
        adapter.reset()

        def spy(model: VisionModel, view: Tensor, hidden: Tensor | None = None, token: Tensor | None = None) -> Any:
            seen.extend([] if hidden is None else [hidden])
            return run(model, view, hidden, token)

        object.__setattr__(adapter.patches, "run", spy)
        adapter(images)
        return uncertainty, seen[0][:, 0]

    for as_released in (True, False):
        uncertainty, hidden = chosen(as_released)
        assert hidden.sum((1, 2)).tolist() == [8] * 12
        least = torch.where(hidden, uncertainty, torch.inf).amin((1, 2))
        most = torch.where(hidden, -torch.inf, uncertainty).amax((1, 2))
        assert bool((least >= most).all()) is as_released
    drawn = (uncertainty * hidden).sum() / hidden.sum()
    assert float(drawn) > float(uncertainty.mean())


def test_restore_puts_the_weights_back_but_not_decoder_and_token(vit: VisionModel) -> None:
    adapter = ContinualMAE(vit, learning_rate=1e-2, restore=1.0)
    images = stream(adapter, 1)[0]
    adapter(images)
    assert same(adapter.model, vit)
    assert float(adapter.token.detach().abs().max()) > 0
    adapter.reset()
    assert float(adapter.token.detach().abs().max()) == 0


def test_the_decoder_of_a_vit_with_patches_of_16_has_108_outputs(vit: VisionModel) -> None:
    adapter = ContinualMAE(vit)
    assert adapter.decoder.weight.shape == (108, 32, 1, 1)
    assert float(adapter.decoder.weight.detach().std()) == pytest.approx(0.02, rel=0.1)


# Patch tokens are found by structure, chosen by uncertainty and hidden exactly; HOG is what a literal loop gives


def found_in(model: VisionModel) -> Patches:
    patches = find_patches(model)
    assert patches is not None
    return patches


def as_list(features: Tensor) -> Tensor:
    """A map of tokens, one after the other."""
    return features.flatten(2).mT


# Where tokens enter and leave


def test_tokens_of_the_tiny_vit_are_normalised_though_it_normalises_the_class_token_alone(vit: VisionModel) -> None:
    network = vit.network
    assert isinstance(network, TinyViT)
    images = torch.rand(2, 3, 32, 32)
    x = network.patches(vit.normalise(images)).flatten(2).mT
    x = network.blocks(torch.cat([network.token.expand(2, -1, -1), x], 1) + network.position)
    output = found_in(vit).run(vit, images)
    assert output.features.shape == (2, 32, 4, 4)
    torch.testing.assert_close(as_list(output.features), network.norm(x)[:, 1:])
    torch.testing.assert_close(output.logits, vit(images).logits)


@pytest.mark.parametrize(("kind", "base"), [("hf-vit", "vit"), ("hf-dinov2", "dinov2")])
def test_tokens_of_hugging_face_are_its_last_hidden_state(kind: str, base: str) -> None:
    model = hugging_face(kind)
    images = torch.rand(2, 3, 32, 32)
    expected = getattr(model.network, base)(model.normalise(images)).last_hidden_state[:, 1:]
    patches = found_in(model)
    assert (patches.entering, patches.leaving, patches.norm) == (32, 32, None)
    torch.testing.assert_close(as_list(patches.run(model, images).features), expected)


def test_hidden_tokens_are_replaced_before_the_position_is_added(vit: VisionModel) -> None:
    network = vit.network
    assert isinstance(network, TinyViT)
    images, token = torch.rand(2, 3, 32, 32), torch.randn(32)
    hidden = torch.rand(2, 1, 4, 4) < 0.5
    x = network.patches(vit.normalise(images)).flatten(2).mT.clone()
    x[hidden.flatten(1)] = token
    x = network.blocks(torch.cat([network.token.expand(2, -1, -1), x], 1) + network.position)
    output = found_in(vit).run(vit, images, hidden, token)
    torch.testing.assert_close(output.logits, network.head(network.norm(x[:, 0])))
    torch.testing.assert_close(as_list(output.features), network.norm(x)[:, 1:])
    assert not network.patches._forward_hooks


def test_a_coarse_mask_hides_the_fine_tokens_of_a_segformer() -> None:
    model = any_size()
    patches = found_in(model)
    images = torch.rand(1, 3, 64, 96)
    hidden = torch.zeros(1, 1, 2, 3, dtype=torch.bool)
    hidden[..., 1, 2] = True
    entered: list[Tensor] = []
    layer = model.get_submodule(patches.entry)
    layer.register_forward_hook(lambda *call: entered.append(call[2]))
    plain = patches.run(model, images)
    assert plain.features.shape == (1, 16, 2, 3)
    layer._forward_hooks.clear()
    changed = patches.run(model, images, hidden, torch.ones(8))
    assert not torch.equal(changed.logits, plain.logits)
    fine = replace(entered[0], hidden, torch.ones(8))
    assert torch.equal(fine[..., 8:, 16:], torch.ones(1, 8, 8, 8))
    assert torch.equal(fine[..., :8, :], entered[0][..., :8, :])
    assert torch.equal(fine[..., 8:, :16], entered[0][..., 8:, :16])


def test_models_without_patch_tokens_have_none(cnn: VisionModel) -> None:
    swin = transformers.SwinForImageClassification(
        transformers.SwinConfig(
            image_size=32, patch_size=2, embed_dim=8, depths=[1, 1], num_heads=[1, 2], window_size=4
        )
    )
    convnext = transformers.ConvNextForImageClassification(
        transformers.ConvNextConfig(hidden_sizes=[8, 8, 8, 8], depths=[1, 1, 1, 1])
    )
    flat = nn.Sequential(nn.Flatten(), nn.Linear(3 * 32 * 32, 3))
    for network in (swin, convnext, flat):
        assert find_patches(load_model(network.eval(), preprocessing=Preprocessing((32, 32)))) is None
    assert find_patches(cnn) is None


# Which tokens are hidden


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 3), st.integers(1, 5), st.integers(1, 5), st.floats(0, 1), st.integers(0, 99))
def test_the_most_uncertain_tokens_are_hidden(n: int, height: int, width: int, share: float, seed: int) -> None:
    uncertainty = torch.rand(n, height, width, generator=torch.Generator().manual_seed(seed))
    hidden = choose_hidden(uncertainty, share)
    assert hidden.shape == (n, 1, height, width)
    for values, flags in zip(uncertainty, hidden, strict=True):
        ranked = sorted(values.flatten().tolist(), reverse=True)
        assert sorted(values[flags[0]].tolist(), reverse=True) == ranked[: math.floor(share * len(ranked))]


def test_drawn_tokens_come_in_proportion_to_their_uncertainty() -> None:
    uncertainty = torch.tensor([0.0, 1.0, 2.0, 5.0]).view(1, 2, 2).expand(4000, 2, 2)
    generator = torch.Generator().manual_seed(0)
    first = Counter(choose_hidden(uncertainty, 0.25, generator).flatten(1).long().argmax(1).tolist())
    assert first[0] == 0
    for token, share in ((1, 1 / 8), (2, 2 / 8), (3, 5 / 8)):
        assert first[token] / 4000 == pytest.approx(share, abs=0.03)
    assert choose_hidden(uncertainty, 0.5, generator).sum((1, 2, 3)).unique().tolist() == [2]


# HOG


def literal_hog(image: Tensor, patch: int) -> Tensor:
    """Channel by channel, pixel by pixel, in double precision: (C 36, h, w)."""
    channels, height, width = image.shape
    cell = patch // 2
    kernel = [[1, 0, -1], [2, 0, -2], [1, 0, -1]]
    found = torch.zeros(channels, 9, height // cell, width // cell, dtype=torch.float64)
    reflect = lambda i, n: -i if i < 0 else 2 * n - 2 - i if i >= n else i  # noqa: E731
    for c in range(channels):
        for y in range(height):
            for x in range(width):
                gx = gy = 0.0
                for i in range(3):
                    for j in range(3):
                        pixel = float(image[c, reflect(y + i - 1, height), reflect(x + j - 1, width)])
                        gx += kernel[i][j] * pixel
                        gy += kernel[j][i] * pixel
                number = math.floor(math.atan2(gx, gy) / math.pi * 9) % 9
                found[c, number, y // cell, x // cell] += math.hypot(gx, gy)
    found = found / found.norm(dim=1, keepdim=True).clamp(min=1e-12)
    rows, columns = height // patch, width // patch
    ordered = torch.zeros(channels * 36, rows, columns, dtype=torch.float64)
    for index in range(channels * 36):
        c, rest = divmod(index, 36)
        number, place = divmod(rest, 4)
        for r in range(rows):
            for s in range(columns):
                ordered[index, r, s] = found[c, number, 2 * r + place // 2, 2 * s + place % 2]
    return ordered


@pytest.mark.parametrize(("patch", "grid"), [(16, (1, 2)), (8, (2, 1)), (4, (2, 3))])
def test_hog_is_the_literal_loop(patch: int, grid: tuple[int, int]) -> None:
    size = (patch * grid[0], patch * grid[1])
    images = torch.rand(2, 3, *size, generator=torch.Generator().manual_seed(0))
    found = hog(images, grid)
    assert found.shape == (2, 108, *grid)
    for image, histogram in zip(images, found, strict=True):
        torch.testing.assert_close(histogram.double(), literal_hog(image.double(), patch), rtol=1e-4, atol=1e-5)


def test_hog_of_a_constant_image_is_zero() -> None:
    assert float(hog(torch.full((1, 3, 32, 32), 0.7), (2, 2)).abs().max()) == 0


def test_any_size_has_a_grid() -> None:
    assert hog(torch.rand(1, 3, 45, 61), (2, 3)).shape == (1, 108, 2, 3)
    assert hog(torch.rand(1, 1, 28, 28), (2, 2)).shape == (1, 36, 2, 2)
