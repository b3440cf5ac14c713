"""Small models with alignments, and what is done to their tokens."""

from typing import Any

import torch
from torch import Tensor, nn

from support.models import tiny_vit
from testdg.models import VisionModel
from testdg.models.alignment import Alignment
from testdg.models.sites import Site

WIDTH = 16


def images(count: int, seed: int = 0, size: int = 32) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    coarse = torch.rand(count, 3, 4, 4, generator=generator)
    return nn.functional.interpolate(coarse, (size, size), mode="bilinear")


def small_vit(depth: int = 3) -> VisionModel:
    return tiny_vit(width=WIDTH, depth=depth, heads=2)


def without_opinion(model: VisionModel) -> VisionModel:
    """The same model with equal predictions, so that classes explain nothing."""
    with torch.no_grad():
        for parameter in model.network.get_submodule(model.head).parameters():
            parameter.zero_()
    return model


def sites(model: VisionModel) -> list[Site]:
    assert model.alignment is not None
    return [site for site in model.alignment.sites if isinstance(site, Site)]


def aligned(model: VisionModel, block: str = "blocks.1", **options: Any) -> Alignment:
    options = {"prefix": 1, "class_token": True, "memory": 800.0, **options}
    return Alignment(model, [block], **options)


class Distortion:
    """A shift and a stretch of what a block gives, channel by channel."""

    def __init__(self, model: VisionModel, block: str = "blocks.1", least: float = 0.55, most: float = 1.9) -> None:
        generator = torch.Generator().manual_seed(1)
        self.scale = least + (most - least) * torch.rand(WIDTH, generator=generator)
        self.shift = torch.randn(WIDTH, generator=generator)
        self.on = False
        model.network.get_submodule(block).register_forward_hook(self)

    def __call__(self, _: nn.Module, __: Any, tokens: Tensor) -> Tensor:
        return tokens * self.scale + self.shift if self.on else tokens


def seen_after(model: VisionModel, block: str, batch: Tensor) -> Tensor:
    """Tokens after a block."""
    found: list[Tensor] = []
    handle = model.network.get_submodule(block).register_forward_hook(lambda _, __, tokens: found.append(tokens))
    with torch.no_grad():
        model.run(batch)
    handle.remove()
    return found[0]


def dark(count: int, seed: int = 0) -> Tensor:
    return 0.3 * images(count, seed)


def watched(**options: Any) -> tuple[VisionModel, Alignment]:
    """A model that was measured on clean images."""
    model = small_vit()
    alignment = aligned(model, **options)
    alignment.measure(model.run, [images(128, seed=9)], 100.0)
    return model, alignment
