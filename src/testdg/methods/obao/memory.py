"""Zhu et al.'s buffer: test images with their pseudo-labels, of which the least certain leave first."""

from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Generator, Tensor, nn

from testdg.errors import UserError


class CertainMemory(nn.Module):
    """Images with pseudo-labels and entropies, in a fixed number of places; an empty place has infinite entropy."""

    varying: ClassVar[tuple[str, ...]] = ("images",)
    uncopied: ClassVar[tuple[str, ...]] = ("images",)
    """They are written after the last pass of a step."""
    images: Tensor
    labels: Tensor
    entropies: Tensor

    def __init__(self, capacity: int, device: torch.device, strict: bool = True) -> None:
        super().__init__()
        self.strict = strict
        self.register_buffer("images", torch.zeros(0, device=device))
        self.register_buffer("labels", torch.zeros(capacity, dtype=torch.int64, device=device))
        self.register_buffer("entropies", torch.full((capacity,), torch.inf, device=device))

    def misfit(self, buffers: Mapping[str, Tensor | None]) -> str | None:
        """Name the buffer if it holds neither nothing nor images in all places."""
        images = buffers["images"]
        if images is None or images.dtype != torch.float32:
            return "images"
        whole = images.ndim == 4 and len(images) == len(self.entropies)
        return None if images.shape == (0,) or whole else "images"

    def expect(self, images: Tensor) -> None:
        """Refuse images of another size than those that are held."""
        if len(self.images) and self.images.shape[1:] != images.shape[1:]:
            had, got = (" x ".join(map(str, x.shape[2:])) for x in (self.images, images))
            raise UserError(f"obao remembers images of one size, {had}; got {got}: resize them, or reset()")

    def filled(self) -> Tensor:
        """Number of images that are held."""
        return self.entropies.isfinite().sum()

    @torch.no_grad()
    def add(self, images: Tensor, labels: Tensor, entropies: Tensor, kept: Tensor) -> None:
        """Offer images; those that are kept take the places of the least certain ones.

        A strict memory gives up a place only to a more certain image, another one always.
        """
        if not len(self.images):
            self.images = torch.zeros(len(self.entropies), *images.shape[1:], device=images.device)
        offered, order = torch.where(kept, entropies.float(), torch.inf).sort()
        offered, order = offered[: len(self.entropies)], order[: len(self.entropies)]
        held, places = self.entropies.topk(len(offered))
        moves = offered < held if self.strict else offered.isfinite()
        for mine, new in ((self.images, images), (self.labels, labels), (self.entropies, entropies.float())):
            chosen = moves.view(-1, *[1] * (mine.ndim - 1))
            mine[places] = torch.where(chosen, new[order], mine[places])

    def draw(self, count: int, generator: Generator) -> tuple[Tensor, Tensor]:
        """Draw images and labels without replacement; `count` is at most the number that is held."""
        keys = torch.rand(self.entropies.shape, generator=generator, device=self.entropies.device)
        places = torch.where(self.entropies.isfinite(), keys, -1.0).topk(count).indices
        return self.images[places], self.labels[places]
