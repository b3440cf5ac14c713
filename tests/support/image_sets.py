"""Small data sets of image files, with and without label maps, in the layouts that people have."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
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


def pixels_of(path: Path) -> torch.Tensor:
    """The values of a stored picture or mask."""
    with Image.open(path) as picture:
        return torch.from_numpy(np.array(picture))


def write_mask(path: Path, seed: int, size: tuple[int, int] = (16, 12), labels: Sequence[int] = (0, 1, 2, 255)) -> Path:
    """A label map of random pixels."""
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(seed).choice(np.array(labels, np.uint8), size[::-1])
    Image.fromarray(pixels).save(path)
    return path


def write_acdc(root: Path, conditions: Sequence[str] = ("fog", "night", "rain", "snow"), count: int = 3) -> None:
    """Two sequences a condition; reference pictures lie next to them."""
    for number, condition in enumerate(conditions):
        for place in range(count):
            sequence = "GP010476" if place else "GOPR0475"
            name, seed = f"{sequence}_frame_{place:06d}", 10 * number + place
            folder = Path(condition) / "train" / sequence
            write_image(root / "rgb_anon" / folder / f"{name}_rgb_anon.png", seed, (64, 36))
            write_mask(root / "gt" / folder / f"{name}_gt_labelTrainIds.png", seed, (64, 36), (0, 7, 18, 255))
        write_image(root / f"rgb_anon/{condition}/train_ref/GOPR0475/x_rgb_ref_anon.png", 1, (64, 36))


def write_cityscapes(root: Path, split: str, kind: str = "labelTrainIds", count: int = 2) -> None:
    """Some pictures of two cities."""
    labels = (0, 13, 18, 255) if kind == "labelTrainIds" else (0, 7, 26, 33)
    for city in ("ulm", "aachen"):
        for place in range(count):
            name = f"{city}_{place:06d}_000019"
            write_image(root / "leftImg8bit" / split / city / f"{name}_leftImg8bit.png", place, (32, 16))
            write_mask(root / "gtFine" / split / city / f"{name}_gtFine_{kind}.png", place, (32, 16), labels)


def write_folder(images: Path, masks: Path, count: int = 3, size: tuple[int, int] = (16, 12), void: int = 11) -> None:
    """Pictures and label maps of the same names."""
    for place in range(count):
        write_image(images / f"scene_{place}.png", place, size)
        write_mask(masks / f"scene_{place}.png", place, size, (0, 1, 2, void))
