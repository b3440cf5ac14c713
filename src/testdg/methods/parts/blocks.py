"""The blocks of a network, found by structure, and what enters and leaves its classifier."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from testdg.models import VisionModel
from testdg.models.blocks import first

LISTS = (nn.ModuleList, nn.Sequential)


class AtHead(NamedTuple):
    """A prediction, and what enters and leaves the classifier: (N, D, ...) and (N, C, ...)."""

    logits: Tensor
    features: Tensor
    scores: Tensor


def run_to_head(model: VisionModel, images: Tensor) -> AtHead:
    """Run a model and look at its classifier, which in a segmentation model is a layer over a coarser map."""
    seen: list[Tensor] = []

    def look(_: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        seen.extend((inputs[0], output))

    handle = model.network.get_submodule(model.head).register_forward_hook(look)
    try:
        logits = model(images).logits
    finally:
        handle.remove()
    return AtHead(logits, *seen)


def transformer_blocks(model: VisionModel) -> list[nn.Module]:
    """Blocks with attention and LayerNorm inside, in the order of the network: members of a list of layers."""
    modules = dict(model.network.named_modules())
    found: dict[str, nn.Module] = {}
    for name, module in modules.items():
        if is_attention(module):
            while name and not isinstance(modules[name.rpartition(".")[0]], LISTS):
                name = name.rpartition(".")[0]
            if name and any(isinstance(layer, nn.LayerNorm) for layer in modules[name].modules()):
                found[name] = modules[name]
    return list(found.values())


def is_attention(module: nn.Module) -> bool:
    """Tell an attention by the name of its class."""
    return any(word in type(module).__name__ for word in ("Attention", "Attn"))


def convolution_blocks(model: VisionModel) -> list[nn.Module]:
    """Blocks with a convolution inside, in the order of the network: the outermost members of lists."""
    found: dict[str, nn.Module] = {}
    modules = dict(model.network.named_modules())
    for name, module in modules.items():
        inside = any(name.startswith(block + ".") for block in found)
        listed = bool(name) and isinstance(modules[name.rpartition(".")[0]], LISTS)
        if listed and not inside and any(isinstance(layer, nn.Conv2d) for layer in module.modules()):
            found[name] = module
    return list(found.values())


@torch.no_grad()
def shapes(model: VisionModel, blocks: list[nn.Module]) -> list[tuple[torch.Size, torch.Size]]:
    """Shapes of what enters and leaves each block that runs, for one empty image."""
    found: dict[nn.Module, tuple[torch.Size, torch.Size]] = {}

    def look(block: nn.Module, inputs: tuple[Tensor, ...], output: Any) -> None:
        if inputs:
            found[block] = inputs[0].shape, first(output).shape

    handles = [block.register_forward_hook(look) for block in blocks]
    try:
        height, width = model.preprocessing.input_size or (32, 32)
        model(torch.zeros(1, model.channels, height, width, device=model.device))
    finally:
        for handle in handles:
            handle.remove()
    return [found[block] for block in blocks if block in found]
