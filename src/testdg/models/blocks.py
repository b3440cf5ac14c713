"""What networks, their blocks and layers take and give, whichever library they come from."""

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from torch import Tensor, nn

from testdg.errors import UserError


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


def find_logits(output: Any) -> Tensor:
    """Of what a network gives, the logits."""
    if isinstance(output, Tensor):
        return output
    if isinstance(getattr(output, "logits", None), Tensor):
        return output.logits  # type: ignore[no-any-return]
    raise UserError(f"the network must return a tensor of logits; it returned {type(output).__name__}")


def pooled(values: Tensor, layer: nn.Module) -> Tensor:
    """What enters or leaves a layer, as one row an image: averaged over the places of a map, or over tokens."""
    if values.ndim <= 2:
        return values
    return values.flatten(2).mean(2) if isinstance(layer, nn.Conv2d) else values.flatten(1, -2).mean(1)


@contextmanager
def watching(*layers: nn.Module, note: Callable[[nn.Module, Tensor, Any], None]) -> Iterator[None]:
    """Tell `note` what enters and leaves layers in the passes within; passes of other threads are not ours."""
    own = threading.get_ident()

    def hook(layer: nn.Module, inputs: tuple[Any, ...], *rest: Any) -> None:
        if threading.get_ident() != own:  # which may find the hook half removed, and hand in less
            return
        named, output = rest
        note(layer, next(value for value in (*inputs, *named.values()) if isinstance(value, Tensor)), output)

    with ExitStack() as hooks:
        for layer in layers:
            hooks.enter_context(layer.register_forward_hook(hook, with_kwargs=True))
        yield


@contextmanager
def holding(modules: Iterable[nn.Module], name: str, value: Any, usual: Any) -> Iterator[None]:
    """Give an attribute of some modules another value than the usual one in the passes within."""
    modules = list(modules)
    for module in modules:
        setattr(module, name, value)
    try:
        yield
    finally:
        for module in modules:
            setattr(module, name, usual)
