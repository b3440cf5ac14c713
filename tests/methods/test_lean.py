"""A backward pass that keeps tokens at the precision of autocast."""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from testdg.methods.parts.blocks import transformer_blocks
from testdg.methods.parts.lean import lean_graph, lean_norms, passed_again
from testdg.models import VisionModel


@contextmanager
def bf16(on: bool) -> Iterator[None]:
    with torch.autocast("cpu", torch.bfloat16, enabled=on):
        yield


def gradients(model: VisionModel, *, lean: bool, autocast: bool) -> list[Tensor]:
    """Of a cross-entropy, by each parameter."""
    model.requires_grad_(True)
    images = torch.rand(8, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    with bf16(autocast):
        with lean_graph("cpu") if lean else nullcontext():
            output = model.run(images)
        loss = nn.functional.cross_entropy(output.logits.float(), torch.arange(8))
    return list(torch.autograd.grad(loss, list(model.parameters())))


def distance(found: list[Tensor], expected: list[Tensor]) -> float:
    one, other = (torch.cat([value.flatten() for value in values]) for values in (found, expected))
    return float((one - other).norm() / other.norm())


def test_gradients_are_those_of_the_full_graph(vit: VisionModel) -> None:
    single = gradients(vit, lean=False, autocast=False)
    plain = gradients(vit, lean=False, autocast=True)
    lean = gradients(vit, lean=True, autocast=True)
    lean_norms(vit)
    both = gradients(vit, lean=True, autocast=True)
    assert 0 < distance(lean, plain) < 0.05
    assert 0 < distance(both, plain) < 0.05
    assert distance(both, single) < 2 * distance(plain, single) + 0.01
    assert {value.dtype for value in both} == {torch.float32}


@pytest.mark.parametrize("norms", [False, True])
def test_without_autocast_nothing_changes(norms: bool, vit: VisionModel) -> None:
    expected = gradients(vit, lean=False, autocast=False)
    if norms:
        lean_norms(vit)
    found = gradients(vit, lean=True, autocast=False)
    assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))


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


def saved_tokens(model: VisionModel, *, lean: bool) -> list[torch.dtype]:
    """Precisions in which tokens of 8 images are kept, (8, T, D)."""
    model.requires_grad_(True)
    with bf16(True), lean_graph("cpu") if lean else nullcontext():
        output = model.run(torch.rand(8, 3, 32, 32, generator=torch.Generator().manual_seed(0)))
    return [value.dtype for value in held(output.logits.grad_fn) if value.ndim == 3 and len(value) == 8]


def test_tokens_are_kept_at_the_precision_of_autocast(vit: VisionModel) -> None:
    plain, lean = saved_tokens(vit, lean=False), saved_tokens(vit, lean=True)
    assert plain.count(torch.float32) >= 4  # the input of each LayerNorm in a block
    assert len(plain) == len(lean)
    assert set(lean) == {torch.bfloat16}


def test_norms_give_the_precision_of_the_layers_after_them(vit: VisionModel) -> None:
    lean_norms(vit)
    norm = vit.network.get_submodule("blocks.0.norm1")
    tokens = torch.randn(2, 5, 32)
    expected = nn.functional.layer_norm(tokens, (32,), norm.get_parameter("weight"), norm.get_parameter("bias"))
    assert torch.equal(norm(tokens), expected)
    with bf16(True):
        assert torch.equal(norm(tokens), expected.bfloat16())


def test_a_graph_is_lean_within_only(vit: VisionModel) -> None:
    with bf16(True), lean_graph("cpu"):
        pass
    assert torch.float32 in saved_tokens(vit, lean=False)


def test_other_shapes_and_precisions_are_kept_as_they_are() -> None:
    given = [torch.randn(shape, requires_grad=True) for shape in ((3, 4), (2, 3, 4, 5))]
    double = torch.randn(2, 3, 4, dtype=torch.float64, requires_grad=True)
    tokens = torch.randn(2, 3, 4, requires_grad=True)
    with bf16(True), lean_graph("cpu"):
        found = [value.square().sum() for value in (*given, double, tokens)]
    for value, loss in zip((*given, double), found, strict=False):
        assert torch.equal(torch.autograd.grad(loss, value)[0], 2 * value)
    (gradient,) = torch.autograd.grad(found[-1], tokens)
    assert torch.equal(gradient, 2 * tokens.bfloat16().float())


@pytest.mark.parametrize("autocast", [False, True])
def test_a_block_that_is_passed_again_keeps_only_its_input(autocast: bool, vit: VisionModel) -> None:
    expected = gradients(vit, lean=False, autocast=autocast)
    blocks = transformer_blocks(vit)[:1]
    with passed_again(blocks):
        found = gradients(vit, lean=False, autocast=autocast)
        few = len(saved_tokens(vit, lean=False))
    assert "forward" not in vars(blocks[0])
    assert few < len(saved_tokens(vit, lean=False))
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other)


def test_a_block_is_itself_again_after_an_error(vit: VisionModel) -> None:
    block = transformer_blocks(vit)[0]
    with pytest.raises(ValueError, match="no images"), passed_again([block]):
        raise ValueError("no images")
    assert "forward" not in vars(block)
