"""How images in [0, 1] become a model's input: size, crop, mean and standard deviation travel with the weights."""

import json
import warnings
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from testdg.bounds import MOST_PIXELS, MOST_RATIO, MOST_SIDE, read_json
from testdg.errors import UserError
from testdg.schema import is_number

Resample = Literal["nearest", "bilinear", "bicubic"]
_PIL_RESAMPLE: dict[int, Resample] = {0: "nearest", 2: "bilinear", 3: "bicubic"}
_TO_PIL = {name: number for number, name in _PIL_RESAMPLE.items()}
_MOST_LEVEL = 1e6  # of a mean or a standard deviation
_MOST_RESIZED = MOST_PIXELS // 4  # of an image that is enlarged


@dataclass(frozen=True)
class Preprocessing:
    """Resizing (and centre crop) followed by normalisation."""

    size: tuple[int, int] | int | None = None
    """(height, width), or an int for the shortest edge, or None to leave images as they are."""
    crop: tuple[int, int] | None = None
    resample: Resample = "bilinear"
    mean: tuple[float, ...] = (0.0, 0.0, 0.0)
    std: tuple[float, ...] = (1.0, 1.0, 1.0)

    def __post_init__(self) -> None:
        for name, size in (("size", self.size), ("crop", self.crop)):
            sides = size if isinstance(size, tuple) and len(size) == 2 else (size,)
            valid = all(type(side) is int and 1 <= side <= MOST_SIDE for side in sides)
            if size is not None and not valid:
                raise _wrong(f"{name} must be sides of 1 to {MOST_SIDE} px", size)
        if self.resample not in _TO_PIL:
            raise _wrong(f"resample must be one of {', '.join(_TO_PIL)}", self.resample)
        for name, values in (("mean", self.mean), ("std", self.std)):
            valid = all(is_number(value) and abs(value) < _MOST_LEVEL for value in values)
            if not values or not valid:
                raise _wrong(f"{name} must be finite numbers, one for each channel", values)
        if len(self.mean) != len(self.std) or min(self.std) <= 0:
            raise _wrong(f"std must be {len(self.mean)} numbers above 0, as many as mean", self.std)

    @property
    def input_size(self) -> tuple[int, int] | None:
        """Height and width of the network's input; None where they vary."""
        return self.crop or (self.size if isinstance(self.size, tuple) else None)

    def resize(self, images: Tensor) -> Tensor:
        """Resize and crop images in [0, 1]; the result stays in [0, 1]."""
        require_dense(images)
        height, width = images.shape[-2:]
        if self.size is not None and min(height, width) == 0:
            empty = f"images of {width} x {height} px cannot be resized: they have no pixels"
            raise UserError(empty, code="image-shape")
        target = self._target(height, width) if isinstance(self.size, int) else self.size
        if target is not None and target != (height, width):
            images = _interpolate(images, target, self.resample)
        return images if self.crop is None else _centre_crop(images, self.crop)

    def _target(self, height: int, width: int) -> tuple[int, int]:
        """Height and width of a resized image with a given shortest edge; gigabytes are refused."""
        assert isinstance(self.size, int)
        short, long = sorted((height, width))
        problem = f"images of {width} x {height} px cannot be resized"
        if long > MOST_RATIO * short:
            thin = f"their long side is more than {MOST_RATIO} times the short one; crop them first"
            raise UserError(f"{problem}: {thin}", code="image-shape")
        longest = int(self.size * long / short)  # truncated, not rounded, as in all libraries
        if self.size * longest > max(_MOST_RESIZED, height * width):
            limit = f"more than {_MOST_RESIZED} pixels; crop them first"
            raise UserError(f"{problem} to a short side of {self.size} px: {limit}", code="image-shape")
        return (self.size, longest) if height <= width else (longest, self.size)

    def describe(self) -> dict[str, object]:
        """The values as plain JSON, for records and saved states."""
        return asdict(self)


def _wrong(rule: str, value: object) -> UserError:
    return UserError(f"{rule}; got {repr(value)[:60]}", code="preprocessing")


def require_dense(images: Tensor) -> None:
    """Refuse sparse, nested and packed tensors."""
    if images.is_nested:
        raise UserError("images must be one dense tensor; got a nested one: stack them", code="image-type")
    if images.layout is not torch.strided:
        kind = str(images.layout).removeprefix("torch.").lstrip("_")
        raise UserError(f"images must be dense; got the layout {kind}: call to_dense() first", code="image-type")


def _interpolate(images: Tensor, target: tuple[int, int], mode: Resample) -> Tensor:
    """Shrink as Pillow does, with antialiasing; enlarge as the field does, with torch's own kernel.

    The two differ only for bicubic: torch's kernel is sharper, and models were fine-tuned on CIFAR images that were
    enlarged with it. On noisy images the difference is several points of error.
    """
    if mode == "nearest":
        return F.interpolate(images, target, mode="nearest-exact")
    shrinks = target[0] < images.shape[-2] or target[1] < images.shape[-1]
    return F.interpolate(images, target, mode=mode, antialias=shrinks).clamp(0, 1)


def _centre_crop(images: Tensor, crop: tuple[int, int]) -> Tensor:
    """Crop the middle; images that are too small get a black border first."""
    lack = [max(0, want - have) for have, want in zip(images.shape[-2:], crop, strict=True)]
    if any(lack):
        down, across = lack
        images = F.pad(images, (across - across // 2, across // 2, down - down // 2, down // 2))
    top, left = ((have - want) // 2 for have, want in zip(images.shape[-2:], crop, strict=True))
    return images[..., top : top + crop[0], left : left + crop[1]]


def identity_with_warning(name: str, stacklevel: int) -> Preprocessing:
    """No preprocessing, with a warning, for a model whose own is unknown."""
    unchanged = f"{name} gets images as they are, with mean 0 and deviation 1"
    warnings.warn(f"{unchanged}: give its own with preprocessing=Preprocessing(...)", stacklevel=stacklevel)
    return Preprocessing()


def read_preprocessor(folder: Path, *, dense: bool = False) -> Preprocessing | None:
    """Read `preprocessor_config.json` of a Hugging Face style folder; None where there is none."""
    path = folder / "preprocessor_config.json"
    if not path.exists():
        return None
    try:
        return from_preprocessor_config(read_json(path), dense=dense)
    except (OSError, ArithmeticError, AttributeError, KeyError, TypeError, ValueError) as error:
        raise UserError(f"{path} is not a preprocessor configuration: {error}", code="preprocessing") from error


def from_preprocessor_config(config: Mapping[str, Any], *, dense: bool = False) -> Preprocessing:
    """Translate the fields of a Hugging Face image processor.

    A `dense` model, which predicts pixels, takes images of any size: the size that transformers writes for such a model
    squeezes them to a square. A size that `write_preprocessor` wrote was chosen, and is used.
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
