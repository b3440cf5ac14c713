"""Inputs, outputs, blocks, layers and tensors of networks, whatever library they are from."""

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from safetensors.torch import save_file
from torch import Tensor, nn

from testdg.errors import UserError

BlockOutput = Tensor | tuple[Tensor, ...]
"""What a block returns: tokens or a map, alone or as the first of several tensors."""


def width_of(block: nn.Module) -> int:
    """Width of a transformer block's tokens: the width of its first LayerNorm."""
    norm = next(layer for layer in block.modules() if isinstance(layer, nn.LayerNorm))
    return norm.normalized_shape[0]


def is_attention(module: nn.Module) -> bool:
    """Whether the name of a module's class says that it is an attention."""
    return any(word in type(module).__name__ for word in ("Attention", "Attn"))


def config_of(network: nn.Module) -> Any:
    """The configuration of a network: a dict for networks of this package, an object of transformers, or None."""
    return getattr(network, "config", None)


def name_classes(network: Any, classes: Sequence[str]) -> None:
    """Write the classes to the network's configuration."""
    config = config_of(network)
    if isinstance(config, dict):
        config["classes"] = len(classes)
    elif hasattr(config, "id2label"):
        config.id2label = dict(enumerate(classes))
        config.label2id = {name: number for number, name in enumerate(classes)}
        network.num_labels = len(classes)


def tensors_of(module: nn.Module) -> dict[str, Tensor]:
    """Parameters and persistent buffers by name, without extra state."""
    return {name: value for name, value in module.state_dict().items() if isinstance(value, Tensor)}


def save_tensors(tensors: Mapping[str, Tensor], path: Path, metadata: dict[str, str] | None = None) -> None:
    """Write tensors of any device, layout and storage to a safetensors file."""
    copies = {name: value.detach().cpu().clone().contiguous() for name, value in tensors.items()}
    save_file(copies, path, metadata)


def first(output: BlockOutput) -> Tensor:
    """The tensor that a block returns, alone or as the first of several."""
    return output[0] if isinstance(output, tuple) else output


def with_first(output: BlockOutput, value: Tensor) -> BlockOutput:
    """The output of a block, with another first tensor."""
    return (value, *output[1:]) if isinstance(output, tuple) else value


def find_logits(output: object) -> Tensor:
    """The logits in the output of a network."""
    logits = getattr(output, "logits", output)
    if isinstance(logits, Tensor):
        return logits
    found = type(output).__name__
    raise UserError(f"the network must return a tensor of logits; it returned {found}", code="bad-network")


def pooled(values: Tensor, layer: nn.Module) -> Tensor:
    """Inputs or outputs of a layer as one row per image: averaged over the places of a map, or over tokens."""
    if values.ndim <= 2:
        return values
    if isinstance(layer, nn.Conv2d):
        return values.flatten(2).mean(2)
    return values.flatten(1, -2).mean(1)


@contextmanager
def watching(*layers: nn.Module, note: Callable[[nn.Module, Tensor, Any], None]) -> Iterator[None]:
    """Context that calls `note` with the inputs and outputs of layers; passes in other threads are ignored."""
    own = threading.get_ident()

    def hook(layer: nn.Module, inputs: tuple[object, ...], *rest: Any) -> None:
        if threading.get_ident() != own:  # it may see the hook half removed, with fewer arguments
            return
        named, output = rest
        given = next(value for value in (*inputs, *named.values()) if isinstance(value, Tensor))
        note(layer, given, output)

    with ExitStack() as hooks:
        for layer in layers:
            hooks.enter_context(layer.register_forward_hook(hook, with_kwargs=True))
        yield


@contextmanager
def holding(modules: Iterable[nn.Module], name: str, value: object, usual: object) -> Iterator[None]:
    """Context in which an attribute of some modules has another value than usual."""
    modules = list(modules)
    for module in modules:
        setattr(module, name, value)
    try:
        yield
    finally:
        for module in modules:
            setattr(module, name, usual)
