"""Small data sets of image files, in the layouts that people have."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image

WNIDS = ("n01440764", "n01443537", "n09468604")


def write_image(path: Path, seed: int, size: tuple[int, int] = (224, 224)) -> Path:
    """A smooth random picture."""
    path.parent.mkdir(parents=True, exist_ok=True)
    small = np.random.default_rng(seed).integers(0, 256, (4, 4, 3), dtype=np.uint8)
    Image.fromarray(small).resize(size, Image.Resampling.BICUBIC).save(path, quality=90)
    return path


def write_classes(
    folder: Path, each: int = 2, wnids: Sequence[str] = WNIDS, size: tuple[int, int] = (224, 224)
) -> None:
    """Some pictures per class, named as in ImageNet."""
    for row, wnid in enumerate(wnids):
        for number in range(each):
            place = row * each + number
            write_image(folder / wnid / f"ILSVRC2012_val_{place:08d}.JPEG", place, size)


def write_stored(root: Path, names: Sequence[str], severities: Sequence[int] = (5,), each: int = 2) -> None:
    """Corruptions in the layout of ImageNet-C (what the pictures show does not matter)."""
    for name in names:
        for severity in severities:
            write_classes(root / name / str(severity), each)
