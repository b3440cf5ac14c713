"""Pictures and label maps in files."""

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor

from testdg.data.benchmarks.base import letters
from testdg.data.image_files import FileSource, find_unreadable
from testdg.data.pictures import open_image_file
from testdg.data.segmentation.classes import LabelTable
from testdg.errors import UserError

Size = tuple[int, int]
"""Height and width."""
_THREADS = 4


class Pair(NamedTuple):
    """A picture, its label map, and the table that translates its numbers."""

    name: str
    image: Path
    mask: Path
    table: LabelTable


class PairFiles:
    """Pictures of one size and label maps of one size (default: the size of the first picture)."""

    def __init__(
        self,
        pairs: Sequence[Pair],
        size: Size | None = None,
        mask_size: Size | None = None,
        workers: int | None = None,
    ) -> None:
        self.pairs = tuple(pairs)
        own = size_of(self.pairs[0].image)
        self.size, self.mask_size = size or own, mask_size or own
        self.threads = ThreadPoolExecutor(workers or _THREADS, thread_name_prefix="pictures")
        self.images = FileSource(self.pairs, partial(read_picture, size=self.size), self.threads)
        self.masks = FileSource(self.pairs, partial(read_mask, size=self.mask_size), self.threads)

    def __len__(self) -> int:
        return len(self.pairs)

    def identity(self) -> list[Tensor]:
        """Tensors for a fingerprint: all names, the first picture and label map."""
        names = letters([pair.name for pair in self.pairs])
        return [names, self.images.take([0]), self.masks.take([0])]

    def load(self) -> tuple[Tensor, Tensor]:
        (height, width), (tall, wide) = self.size, self.mask_size
        most = room() // (3 * height * width + tall * wide)
        if len(self) > most:
            folder = self.pairs[0].image.parent.parent
            message = f"{folder} has {len(self)} pictures, more than the {most} that fit in memory"
            raise UserError(f"{message}: choose some with the subset 'first:N'", code="too-many-images")
        everything = range(len(self))
        return self.images.take(everything), self.masks.take(everything)


def readable(pairs: Sequence[Pair], workers: int | None = None) -> tuple[list[Pair], list[str]]:
    """Read all pairs; return those whose files are readable, and the names of the others."""

    def read(pair: Pair) -> None:
        size = size_of(pair.image)
        read_picture(pair, size)
        read_mask(pair, size)

    with ThreadPoolExecutor(workers or _THREADS) as threads:
        damaged = {pair.name for pair in find_unreadable(pairs, read, threads)}
    if len(damaged) == len(pairs):
        message = f"none of {len(pairs)} pictures with label maps can be read, first {pairs[0].image}"
        raise UserError(message, code="unreadable-picture")
    good = [pair for pair in pairs if pair.name not in damaged]
    return good, [pair.name for pair in pairs if pair.name in damaged]


def room() -> int:
    """Bytes of memory for pictures: half of the machine's, at most 16 GiB; 4 GiB if its size is unknown."""
    try:
        return min(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2, 16 << 30)
    except (AttributeError, OSError, ValueError):
        return 4 << 30


def size_of(path: Path) -> Size:
    """Height and width of a picture, from its header."""
    with open_image_file(path) as picture:
        return picture.height, picture.width


def check_picture(path: Path) -> None:
    """Refuse a damaged picture: checksums of a PNG are verified, other formats are decoded."""
    with open_image_file(path) as picture:
        _check_depth(picture, path)
        if picture.format == "PNG":
            picture.verify()
        else:
            picture.load()


def _check_depth(picture: Image.Image, path: Path) -> None:
    """Refuse more than 8 bits a channel, which Pillow would clip to white."""
    if picture.mode.startswith(("I", "F")):
        raise UserError(f"{path} is a picture of kind {picture.mode}: expected 8 bits a channel", code="picture-kind")


def read_picture(pair: Pair, size: Size) -> Tensor:
    """A picture at a size, uint8, (3, H, W): bilinear, without antialiasing, as the published pipelines resize."""
    with open_image_file(pair.image) as picture:
        _check_depth(picture, pair.image)
        levels = torch.from_numpy(np.array(picture.convert("RGB"))).permute(2, 0, 1)
    if levels.shape[1:] == size:
        return levels.contiguous()
    resized = F.interpolate(levels[None].float(), size, mode="bilinear", align_corners=False)
    return resized[0].round().byte()


def read_mask(pair: Pair, size: Size) -> Tensor:
    """A label map at a size, uint8, (H, W): the class of the nearest pixel, 255 for none."""
    expected = size_of(pair.image)
    with open_image_file(pair.mask) as picture:
        if picture.mode not in ("L", "P"):
            message = "expected one class number per pixel, as a grey or palette PNG"
            raise UserError(f"{pair.mask} is a picture of kind {picture.mode}: {message}", code="picture-kind")
        if (picture.height, picture.width) != expected:
            message = f"{pair.mask} has {picture.width} x {picture.height} px"
            other = f"its picture {pair.image.name} {expected[1]} x {expected[0]} px"
            raise UserError(f"{message}, but {other}: restore the pair", code="picture-size")
        if expected != size:
            picture = picture.resize((size[1], size[0]), Image.Resampling.NEAREST)
        return torch.from_numpy(pair.table.apply(np.array(picture), pair.mask))
