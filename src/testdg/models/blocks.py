"""What a transformer block takes and gives, whichever library it comes from."""

from typing import Any

from torch import Tensor, nn


def width_of(block: nn.Module) -> int:
    """Width of a transformer block's tokens: that of its first LayerNorm."""
    norm = next(layer for layer in block.modules() if isinstance(layer, nn.LayerNorm))
    return norm.normalized_shape[0]


def is_attention(module: nn.Module) -> bool:
    """Tell an attention by the name of its class."""
    return any(word in type(module).__name__ for word in ("Attention", "Attn"))


def first(output: Any) -> Tensor:
    """The tensor that a block gives, alone or as the first of several."""
    return output[0] if isinstance(output, tuple) else output  # type: ignore[no-any-return]


def with_first(output: Any, value: Tensor) -> Any:
    """What a block gives, with another tensor in the place of the first."""
    return (value, *output[1:]) if isinstance(output, tuple) else value
