"""Frost textures: photographs from a folder, or procedural ones of the same strength."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from testdg.data.corruptions.crystals import PANES, grow
from testdg.data.corruptions.filters import mirror
from testdg.data.corruptions.generator import ImageNoise
from testdg.data.pictures import open_picture
from testdg.errors import UserError

_SUFFIXES = (".png", ".jpg", ".jpeg")
_USED = 5  # the reference recipe has six photographs and draws from the first five


@dataclass(frozen=True, eq=False)
class FrostTextures:
    """Pictures of frost, (3, H, W) uint8 RGB each, and where they come from."""

    textures: tuple[Tensor, ...]
    description: str

    @classmethod
    def from_folder(cls, path: str | Path) -> FrostTextures:
        """Read the first five PNG or JPEG pictures of a folder, by name."""
        folder = Path(path)
        files = sorted(f for f in folder.glob("*") if f.suffix.lower() in _SUFFIXES)[:_USED]
        if not files:
            raise UserError(f"frost textures: no .png or .jpg file in {str(folder)!r}; name a folder of pictures")
        return cls(tuple(_read(file) for file in files), f"photographs from {folder.resolve().name}")

    @classmethod
    def procedural(cls) -> FrostTextures:
        """Grow five textures with the brightness, colour and contrast of the reference's photographs."""
        return cls(_grown(), "procedural")

    def cut(self, noise: ImageNoise, height: int, width: int, *, scale: float) -> Tensor:
        """Cut a random piece of a random texture for each image, (N, 3, H, W) uint8."""
        small = [_thin(texture, scale) for texture in self.textures]
        choices = noise.integers(low=0, high=len(small)).tolist()
        places = noise.uniform(2).double().tolist()
        cuts = [_cut(small[choice], height, width, place) for choice, place in zip(choices, places, strict=True)]
        return torch.stack(cuts)


@cache
def _grown() -> tuple[Tensor, ...]:
    """Grow the textures once; it takes half a second."""
    return tuple(grow(pane, number) for number, pane in enumerate(PANES))


def _read(file: Path) -> Tensor:
    """Read a picture as (3, H, W) uint8 RGB."""
    try:
        with open_picture(file) as picture:
            return torch.from_numpy(np.array(picture.convert("RGB"))).permute(2, 0, 1).contiguous()
    except Exception as error:  # a damaged picture raises nearly anything
        raise UserError(f"frost textures: {file} cannot be read as an image: {error}; take it away") from error


def _thin(texture: Tensor, scale: float) -> Tensor:
    """Keep every n-th pixel, counted from the middle of the first n."""
    stride = round(1 / scale)
    return texture[:, stride // 2 :: stride, stride // 2 :: stride]


def _cut(texture: Tensor, height: int, width: int, place: Sequence[float]) -> Tensor:
    """Cut at a relative place; a texture that is too small is continued by its mirror image."""
    for axis, size, at in ((1, height, place[0]), (2, width, place[1])):
        available = texture.shape[axis]
        room = available - size
        start = int(at * (room if room > 0 else available))
        if room > 0:
            texture = texture.narrow(axis, start, size)
        else:
            texture = texture.index_select(axis, mirror(torch.arange(start, start + size), available))
    return texture
