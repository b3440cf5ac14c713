"""The blocks of a network, found by structure, and what enters and leaves its classifier."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from testdg.models import VisionModel
from testdg.models.blocks import BlockOutput, first, is_attention, watching, width_of

LISTS = (nn.ModuleList, nn.Sequential)


class AtHead(NamedTuple):
    """A prediction, and what enters and leaves the classifier: (N, D, ...) and (N, C, ...)."""

    logits: Tensor
    features: Tensor
    scores: Tensor


def run_to_head(model: VisionModel, images: Tensor) -> AtHead:
    """Run a model and look at its classifier, which in a segmentation model is a layer over a coarser map."""
    seen: list[Tensor] = []
    with watching(model.head_layer, note=lambda _, entered, left: seen.extend((entered, left))):
        logits = model(images).logits
    return AtHead(logits, *seen)


def transformer_blocks(model: VisionModel) -> list[nn.Module]:
    """Blocks with attention and LayerNorm inside, in the order of the network: members of a list of layers."""
    modules = dict(model.network.named_modules())
    blocks: dict[str, nn.Module] = {}
    for name, module in modules.items():
        if is_attention(module):
            while name and not isinstance(modules[name.rpartition(".")[0]], LISTS):
                name = name.rpartition(".")[0]
            if name and any(isinstance(layer, nn.LayerNorm) for layer in modules[name].modules()):
                blocks[name] = modules[name]
    return list(blocks.values())


def segformer_stages(model: VisionModel) -> list[list[nn.Module]]:
    """Blocks of each stage of a SegFormer."""
    network: Any = model.network
    rest = iter(transformer_blocks(model))
    return [[next(rest) for _ in range(depth)] for depth in network.config.depths]


def convolution_blocks(model: VisionModel) -> list[nn.Module]:
    """Blocks with a convolution inside, in the order of the network: the outermost members of lists."""
    blocks: dict[str, nn.Module] = {}
    modules = dict(model.network.named_modules())
    for name, module in modules.items():
        inside = any(name.startswith(block + ".") for block in blocks)
        listed = bool(name) and isinstance(modules[name.rpartition(".")[0]], LISTS)
        if listed and not inside and any(isinstance(layer, nn.Conv2d) for layer in module.modules()):
            blocks[name] = module
    return list(blocks.values())


@contextmanager
def hooked(*hooks: tuple[nn.Module, Callable[..., Any]]) -> Iterator[None]:
    """Call hooks after the forward passes of modules, in the passes within."""
    with ExitStack() as handles:
        for module, hook in hooks:
            handles.enter_context(module.register_forward_hook(hook))
        yield


@torch.no_grad()
def pass_empty_image(model: VisionModel) -> None:
    model(model.empty_image())


def shapes(model: VisionModel, blocks: list[nn.Module]) -> list[tuple[torch.Size, torch.Size]]:
    """Shapes of what enters and leaves each block that runs, for a black image."""
    by_block: dict[nn.Module, tuple[torch.Size, torch.Size]] = {}

    def note(block: nn.Module, inputs: tuple[Tensor, ...], output: BlockOutput) -> None:
        if inputs:
            by_block[block] = inputs[0].shape, first(output).shape

    with hooked(*((block, note) for block in blocks)):
        pass_empty_image(model)
    return [by_block[block] for block in blocks if block in by_block]


def prefix_tokens(model: VisionModel, block: str) -> int:
    """Number of class and register tokens before the patches: those that no convolution has made."""
    convolutions: list[nn.Module] = [layer for layer in model.network.modules() if isinstance(layer, nn.Conv2d)]
    in_and_out = shapes(model, [model.network.get_submodule(block), *convolutions])
    tokens = in_and_out[0][1][1]
    maps = [output[-2] * output[-1] for _, output in in_and_out[1:] if output[-2] * output[-1] <= tokens]
    return int(tokens - max(maps, default=tokens - 1))


def final_norm(model: VisionModel) -> str | None:
    """Name of the LayerNorm after the last block of a ViT; None where none is."""
    if model.task == "segmentation":
        return None
    inside = {layer for block in transformer_blocks(model) for layer in block.modules()}
    norms = [name for name, layer in model.norm_layers() if isinstance(layer, nn.LayerNorm) and layer not in inside]
    return norms[-1] if norms else None


def class_tokens(model: VisionModel) -> int:
    """Number of class and register tokens in a transformer whose blocks are of one width; 0 where there is none."""
    blocks = transformer_blocks(model)
    if model.task != "classification" or len({width_of(block) for block in blocks}) != 1:
        return 0
    return prefix_tokens(model, {block: name for name, block in model.network.named_modules()}[blocks[0]])


@contextmanager
def entering(model: VisionModel, change: Callable[[Tensor], Tensor]) -> Iterator[None]:
    """Change the tokens that enter the first block of a transformer, (N, T, D), in the passes within."""

    def hook(_: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        return (change(inputs[0]), *inputs[1:])

    with transformer_blocks(model)[0].register_forward_pre_hook(hook):
        yield
