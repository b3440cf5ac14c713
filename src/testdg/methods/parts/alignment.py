"""Aligning any network: where the tokens of a transformer are moved, and BatchNorm layers that follow the stream."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from testdg.errors import UserError
from testdg.methods.parts.blocks import shapes, transformer_blocks
from testdg.methods.parts.normalisation import follow_statistics, use_running_statistics
from testdg.models import VisionModel
from testdg.models.alignment import Alignment, Mode, aligning

LEAST = 64
"""Source images without which a sketch is noise."""
BEGINNING = 100.0
"""Images that the source counts for when a stream begins."""


def make_alignable(
    model: VisionModel, *, sites: int, class_token: bool, memory: float, norm_memory: float, threshold: float, at: str = ""
) -> None:
    """Put an alignment after evenly spaced blocks of a transformer, and let BatchNorm layers follow the stream."""
    use_running_statistics(model, norm_memory)
    names = site_names(model, sites)
    if at:
        blocks = transformer_blocks(model); nm = {b: n for n, b in model.network.named_modules()}
        names = [] if at == "off" else [nm[blocks[int(k)]] for k in at.split(",")]
    if names:
        prefix = prefix_tokens(model, names[0])
        Alignment(model, names, prefix=prefix, class_token=class_token, memory=memory, threshold=threshold)


def site_names(model: VisionModel, sites: int) -> list[str]:
    """Blocks that divide the depth of a transformer evenly: of 12 blocks, for two sites, the fifth and the ninth."""
    blocks = transformer_blocks(model)
    names = {block: name for name, block in model.network.named_modules()}
    chosen = sorted({len(blocks) * k // (sites + 1) for k in range(1, sites + 1)}) if blocks else []
    return [names[blocks[place]] for place in chosen]


def prefix_tokens(model: VisionModel, block: str) -> int:
    """Number of class and register tokens before the patches: those that no convolution has made."""
    convolutions: list[nn.Module] = [layer for layer in model.network.modules() if isinstance(layer, nn.Conv2d)]
    found = shapes(model, [model.network.get_submodule(block), *convolutions])
    tokens = found[0][1][1]
    maps = [output[-2] * output[-1] for _, output in found[1:] if output[-2] * output[-1] <= tokens]
    return int(tokens - max(maps, default=tokens - 1))


@torch.no_grad()
def sketch(model: VisionModel, batches: Iterable[Tensor], images: int) -> None:
    """Measure the source on prepared images, once, and begin the memory with it."""
    alignment = model.alignment
    if alignment is None:  # BatchNorm layers know the source already
        return
    seen = 0
    with aligning(model, "measure"):
        for batch in batches:
            model(batch[: images - seen])
            seen += len(batch[: images - seen])
            if seen >= images:
                break
    if seen < LEAST:
        raise UserError(f"alignment needs at least {LEAST} source images; got {seen}")
    alignment.begin(BEGINNING)


@contextmanager
def following(model: VisionModel) -> Iterator[None]:
    """Let all statistics of a model follow the stream in the passes within."""
    with follow_statistics(model), aligning(model, "follow"):
        yield


__all__ = ["LEAST", "Mode", "aligning", "following", "make_alignable", "prefix_tokens", "site_names", "sketch"]
