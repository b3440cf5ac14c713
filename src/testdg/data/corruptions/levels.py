"""Grey levels: uint8 images as numbers in [0, 1], and back."""

import torch
from torch import Tensor

_ROUNDING = 2.0**-10  # what is a grey level up to float32 rounding stays that grey level


def from_levels(levels: Tensor) -> Tensor:
    """Turn uint8 levels into float32 numbers in [0, 1]."""
    return levels.float() * (1 / 255)


def to_levels(images: Tensor) -> Tensor:
    """Clip to [0, 1] and truncate to uint8 levels."""
    return (images.clamp(0, 1) * 255 + _ROUNDING).floor().to(torch.uint8)
