"""Less memory for a backward pass under autocast, at the precision that its layers compute in anyway."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from testdg.models import VisionModel


class LeanLayerNorm(nn.LayerNorm):
    """A LayerNorm that computes in full precision, and keeps and gives tokens at the precision of autocast.

    It gives what the linear layers after it read: one copy, instead of one for each of them.
    """

    def forward(self, tokens: Tensor) -> Tensor:
        """(..., D) to the same."""
        device = tokens.device.type
        if not torch.is_autocast_enabled(device):
            return super().forward(tokens)
        low = torch.get_autocast_dtype(device)
        inputs = tokens, self.weight, self.bias, self.normalized_shape, self.eps, low
        return _LeanNorm.apply(*inputs)  # type: ignore[no-any-return, no-untyped-call]


class _LeanNorm(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, tokens: Tensor, weight: Tensor, bias: Tensor, shape: Any, eps: float, low: torch.dtype
    ) -> Tensor:
        output, mean, scale = torch.native_layer_norm(tokens.float(), shape, weight, bias, eps)
        ctx.save_for_backward(tokens.to(low), mean, scale, weight, bias)
        ctx.shape, ctx.dtype = shape, tokens.dtype
        return output.to(low)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        tokens, mean, scale, weight, bias = ctx.saved_tensors
        wanted = ctx.needs_input_grad[:3]
        by_tokens, by_weight, by_bias = torch.ops.aten.native_layer_norm_backward(
            gradients[0].float(), tokens.float(), ctx.shape, mean, scale, weight, bias, wanted
        )
        by_tokens = by_tokens.to(ctx.dtype) if wanted[0] else None
        return by_tokens, by_weight, by_bias, None, None, None


def lean_norms(model: VisionModel) -> None:
    """Make the LayerNorms of a model lean ones."""
    for _, layer in model.norm_layers():
        if type(layer) is nn.LayerNorm and layer.elementwise_affine and layer.bias is not None:
            layer.__class__ = LeanLayerNorm


@contextmanager
def passed_again(blocks: Iterable[nn.Module]) -> Iterator[None]:
    """Keep only what enters these blocks; the backward pass runs them once more.

    The first block of a network saves the most: when it is run again, the memory of all others is free.
    """
    blocks = list(blocks)
    for block in blocks:
        block.forward = partial(checkpoint, block.forward, use_reentrant=False, preserve_rng_state=False)
    try:
        yield
    finally:
        for block in blocks:
            del block.forward
