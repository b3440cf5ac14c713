"""A backward pass that keeps tokens at the precision of autocast."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from testdg.methods.parts.blocks import transformer_blocks
from testdg.methods.testdg_aligned import LeanLayerNorm, lean_norms, passed_again
from testdg.models import VisionModel


@contextmanager
def bf16(on: bool) -> Iterator[None]:
    with torch.autocast("cpu", torch.bfloat16, enabled=on):
        yield


def gradients(model: VisionModel, *, autocast: bool) -> list[Tensor]:
    """Of a cross-entropy, by each parameter."""
    model.requires_grad_(True)
    images = torch.rand(8, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    with bf16(autocast):
        output = model.run(images)
        loss = nn.functional.cross_entropy(output.logits.float(), torch.arange(8))
    return list(torch.autograd.grad(loss, list(model.parameters())))


def test_without_autocast_nothing_changes(vit: VisionModel) -> None:
    expected = gradients(vit, autocast=False)
    lean_norms(vit)
    found = gradients(vit, autocast=False)
    assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))


def test_a_norm_has_the_gradients_of_the_ordinary_one() -> None:
    """By the tokens, the weight and the bias, in full precision but for the tokens that it keeps."""
    ordinary, lean = nn.LayerNorm(6), nn.LayerNorm(6)
    for layer in (ordinary, lean):
        nn.init.uniform_(layer.weight, generator=torch.Generator().manual_seed(0))
        nn.init.uniform_(layer.bias, generator=torch.Generator().manual_seed(1))
    lean.__class__ = LeanLayerNorm
    tokens = torch.randn(4, 5, 6, generator=torch.Generator().manual_seed(2)).bfloat16().float()
    weights = torch.randn(4, 5, 6, generator=torch.Generator().manual_seed(3)).bfloat16().float()
    found = []
    for layer, on in ((ordinary, False), (lean, True)):
        given = tokens.clone().requires_grad_(True)
        with bf16(on):
            loss = (layer(given).float() * weights).sum()
        found.append(torch.autograd.grad(loss, [given, layer.weight, layer.bias]))
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other)


def held(node: Any) -> Iterator[Tensor]:
    """Every tensor that a graph has saved, as it lies in memory."""
    waiting, seen = [node], set()
    while waiting:
        if (node := waiting.pop()) is None or node in seen:
            continue
        seen.add(node)
        waiting.extend(parent for parent, _ in node.next_functions)
        for name in dir(node):
            saved = getattr(node, name) if name.startswith("_raw_saved") else None
            for one in saved if isinstance(saved, tuple) else [saved]:
                value = None if one is None else one.data
                value = value[0] if isinstance(value, tuple) else value
                if isinstance(value, Tensor):
                    yield value


def saved_tokens(model: VisionModel) -> list[torch.dtype]:
    """Precisions in which tokens of 8 images are stored, (8, T, 32)."""
    model.requires_grad_(True)
    with bf16(True):
        output = model.run(torch.rand(8, 3, 32, 32, generator=torch.Generator().manual_seed(0)))
    return [value.dtype for value in held(output.logits.grad_fn) if value.ndim == 3 and value.shape[::2] == (8, 32)]


def test_tokens_are_kept_at_the_precision_of_autocast(vit: VisionModel) -> None:
    plain = saved_tokens(vit)
    assert plain.count(torch.float32) >= 4  # the input of each LayerNorm in a block
    lean_norms(vit)
    assert torch.float32 not in saved_tokens(vit)


def test_norms_give_the_precision_of_the_layers_after_them(vit: VisionModel) -> None:
    lean_norms(vit)
    norm = vit.network.get_submodule("blocks.0.norm1")
    tokens = torch.randn(2, 5, 32)
    expected = nn.functional.layer_norm(tokens, (32,), norm.get_parameter("weight"), norm.get_parameter("bias"))
    assert torch.equal(norm(tokens), expected)
    with bf16(True):
        assert torch.equal(norm(tokens), expected.bfloat16())


@pytest.mark.parametrize("autocast", [False, True])
def test_a_block_that_is_passed_again_keeps_only_its_input(autocast: bool, vit: VisionModel) -> None:
    expected = gradients(vit, autocast=autocast)
    blocks = transformer_blocks(vit)[:1]
    with passed_again(blocks):
        found = gradients(vit, autocast=autocast)
        few = len(saved_tokens(vit))
    assert "forward" not in vars(blocks[0])
    assert few < len(saved_tokens(vit))
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other)
