"""How images in [0, 1] become a model's input: size, crop, mean and standard deviation travel with the weights."""

import json
import math
import warnings
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from testdg.bounds import MOST_PIXELS, MOST_RATIO, MOST_SIDE, read_json
from testdg.errors import UserError

Resample = Literal["nearest", "bilinear", "bicubic"]
_PIL_RESAMPLE: dict[int, Resample] = {0: "nearest", 2: "bilinear", 3: "bicubic"}
_TO_PIL = {name: number for number, name in _PIL_RESAMPLE.items()}
_MOST_LEVEL = 1e6  # of a mean or a standard deviation
_MOST_RESIZED = MOST_PIXELS // 4  # of an image that is enlarged


@dataclass(frozen=True)
class Preprocessing:
    """Resizing (and centre crop) followed by normalisation."""

    size: tuple[int, int] | int | None = None
    """(height, width), or an int for the shortest edge, or None to take images as they come."""
    crop: tuple[int, int] | None = None
    resample: Resample = "bilinear"
    mean: tuple[float, ...] = (0.0, 0.0, 0.0)
    std: tuple[float, ...] = (1.0, 1.0, 1.0)

    def __post_init__(self) -> None:
        for name, size in (("size", self.size), ("crop", self.crop)):
            sides = size if isinstance(size, tuple) and len(size) == 2 else (size,)
            if size is not None and not all(type(side) is int and 1 <= side <= MOST_SIDE for side in sides):
                raise UserError(f"{name} must be sides of 1 to {MOST_SIDE} px; got {_short(size)}")
        if self.resample not in _TO_PIL:
            raise UserError(f"resample must be one of {', '.join(_TO_PIL)}; got {self.resample!r}")
        for name, values in (("mean", self.mean), ("std", self.std)):
            if not values or not all(_is_number(value) for value in values):
                raise UserError(f"{name} must be finite numbers, one for each channel; got {_short(values)}")
        if len(self.mean) != len(self.std) or min(self.std) <= 0:
            raise UserError(f"std must be {len(self.mean)} numbers above 0, as many as mean; got {_short(self.std)}")

    @property
    def input_size(self) -> tuple[int, int] | None:
        """Height and width that reach the network, where they are fixed."""
        return self.crop or (self.size if isinstance(self.size, tuple) else None)

    def resize(self, images: Tensor) -> Tensor:
        """Resize and crop images in [0, 1]; the result stays in [0, 1]."""
        require_dense(images)
        height, width = images.shape[-2:]
        if self.size is not None:
            _check_resize(height, width, self.size)
        target = _shortest_edge(height, width, self.size) if isinstance(self.size, int) else self.size
        if target is not None and target != (height, width):
            images = _interpolate(images, target, self.resample)
        return images if self.crop is None else _centre_crop(images, self.crop)

    def describe(self) -> dict[str, Any]:
        """Give the values as plain JSON, for records and for `preprocessor_config.json`."""
        return asdict(self)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < _MOST_LEVEL


def _short(value: Any) -> str:
    """A value from a file in a few letters; numbers of thousands of digits have no text."""
    try:
        return repr(value)[:60]
    except ValueError:
        return "a number without end"


def _check_resize(height: int, width: int, size: tuple[int, int] | int) -> None:
    """Refuse to make images of gigabytes from some that are small."""
    short, long = sorted((height, width))
    problem = f"images of {width} x {height} px cannot be resized"
    if short == 0:
        raise UserError(f"{problem}: they have no pixels")
    if not isinstance(size, int):
        return
    if long > MOST_RATIO * short:
        raise UserError(f"{problem}: their long side is more than {MOST_RATIO} times the short one; cut them first")
    if math.prod(_shortest_edge(height, width, size)) > max(_MOST_RESIZED, height * width):
        raise UserError(f"{problem} to a short side of {size} px: more than {_MOST_RESIZED} pixels; cut them first")


def require_dense(images: Tensor) -> None:
    """Refuse tensors whose pixels do not lie side by side in memory: sparse, nested and packed ones."""
    if images.is_nested:
        raise UserError("images must be one dense tensor; got a nested one: stack images of one size")
    if images.layout is not torch.strided:
        kind = str(images.layout).removeprefix("torch.").lstrip("_")
        raise UserError(f"images must be a dense tensor; got one with the layout {kind}: call to_dense() first")


def _interpolate(images: Tensor, target: tuple[int, int], mode: Resample) -> Tensor:
    """Shrink as Pillow does, with antialiasing; enlarge as the field does, with torch's own kernel.

    The two differ for bicubic alone: torch's is sharper, and the enlarged CIFAR images that models were fine-tuned on
    were made with it. On noisy images the difference is worth several points of error.
    """
    if mode == "nearest":
        return F.interpolate(images, target, mode="nearest-exact")
    shrinks = target[0] < images.shape[-2] or target[1] < images.shape[-1]
    return F.interpolate(images, target, mode=mode, antialias=shrinks).clamp(0, 1)


def _shortest_edge(height: int, width: int, edge: int) -> tuple[int, int]:
    longest = int(edge * max(height, width) / min(height, width))  # cut, not rounded, as everybody does
    return (edge, longest) if height <= width else (longest, edge)


def _centre_crop(images: Tensor, crop: tuple[int, int]) -> Tensor:
    """Cut out the middle; what is too small gets a black border first."""
    lack = [max(0, want - have) for have, want in zip(images.shape[-2:], crop, strict=True)]
    if any(lack):
        down, across = lack
        images = F.pad(images, (across - across // 2, across // 2, down - down // 2, down // 2))
    top, left = ((have - want) // 2 for have, want in zip(images.shape[-2:], crop, strict=True))
    return images[..., top : top + crop[0], left : left + crop[1]]


def nobody_said(name: str, stacklevel: int) -> Preprocessing:
    """None at all, for a model whose own nobody gave; a warning says so."""
    told = f"{name} gets images as they are, with mean 0 and deviation 1"
    warnings.warn(f"{told}: give its own with preprocessing=Preprocessing(...)", stacklevel=stacklevel)
    return Preprocessing()


def read_preprocessor(folder: Path, *, dense: bool = False) -> Preprocessing | None:
    """Read `preprocessor_config.json` of a Hugging Face style folder; None where there is none."""
    path = folder / "preprocessor_config.json"
    if not path.exists():
        return None
    try:
        return from_preprocessor_config(read_json(path), dense=dense)
    except (OSError, ArithmeticError, AttributeError, KeyError, TypeError, ValueError) as error:
        raise UserError(f"{path} is not a preprocessor configuration: {error}") from error


def from_preprocessor_config(config: dict[str, Any], *, dense: bool = False) -> Preprocessing:
    """Translate the fields of a Hugging Face image processor.

    A `dense` model, which predicts pixels, takes images as they come: the size that transformers writes beside such a
    model squeezes them to a square. A size that `write_preprocessor` wrote was chosen, and stays.
    """
    theirs = "image_processor_type" in config or "feature_extractor_type" in config
    resize = config.get("do_resize", True) and not (dense and theirs)
    size = _read_size(config.get("size")) if resize else None
    crop = _read_size(config.get("crop_size")) if config.get("do_center_crop", False) else None
    normalise = config.get("do_normalize", True)
    return Preprocessing(
        size=size,
        crop=(crop, crop) if isinstance(crop, int) else crop,
        resample=_PIL_RESAMPLE[int(config.get("resample", 2))],
        mean=tuple(config.get("image_mean", (0.5,) * 3)) if normalise else (0.0,) * 3,
        std=tuple(config.get("image_std", (0.5,) * 3)) if normalise else (1.0,) * 3,
    )


def _read_size(size: Any) -> tuple[int, int] | int | None:
    if size is None or isinstance(size, int):
        return None if size is None else (size, size)
    if "shortest_edge" in size:
        return int(size["shortest_edge"])
    return int(size["height"]), int(size["width"])


def write_preprocessor(preprocessing: Preprocessing, folder: Path) -> None:
    """Write `preprocessor_config.json`, readable by `read_preprocessor` and by transformers."""
    size, crop = preprocessing.size, preprocessing.crop
    config = {
        "do_resize": size is not None,
        "size": {"shortest_edge": size} if isinstance(size, int) else _as_edges(size),
        "do_center_crop": crop is not None,
        "crop_size": _as_edges(crop),
        "resample": _TO_PIL[preprocessing.resample],
        "do_rescale": True,
        "rescale_factor": 1 / 255,
        "do_normalize": True,
        "image_mean": list(preprocessing.mean),
        "image_std": list(preprocessing.std),
    }
    config = {key: value for key, value in config.items() if value is not None}
    (folder / "preprocessor_config.json").write_text(json.dumps(config, indent=2) + "\n")


def _as_edges(size: tuple[int, int] | None) -> dict[str, int] | None:
    return None if size is None else {"height": size[0], "width": size[1]}
