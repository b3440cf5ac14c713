"""Bounds of what is read from the files of others: they are looked at before anything is read, and each has a reason.

Whatever is out of bounds raises ValueError with the reason in words; the caller knows what the file was for.
"""

import json
import os
import stat
from pathlib import Path
from typing import Any

from testdg.errors import UserError

MOST_TEXT = 16 << 20
"""Bytes of a text file, such as a configuration or a list."""
MOST_ARRAY = 256 << 20
"""Bytes of an array that is read whole: those of the largest part of CIFAR are 154 million."""
MOST_PIXELS = 1 << 26
"""Pixels of a picture, 8192 x 8192: no picture of ImageNet has more."""
MOST_RATIO = 100
"""How many times the short side of a picture fits into its long side."""
MOST_SIDE = 4096
"""Pixels of a side of a model's input."""


def check_file(path: str | Path, most: int | None = None) -> None:
    """Refuse what is no ordinary file (a pipe or a device may never end) and what is too large."""
    about = os.stat(path)
    if not stat.S_ISREG(about.st_mode):
        raise ValueError("it is no ordinary file")
    if most is not None and about.st_size > most:
        raise ValueError(f"it has {about.st_size} bytes, more than the {most} that such a file may have")


def read_text(path: str | Path, most: int = MOST_TEXT) -> str:
    """Read a text file of a bounded size."""
    check_file(path, most)
    return Path(path).read_text(encoding="utf-8")


def read_json(path: str | Path) -> Any:
    """Read a JSON file of a bounded size and depth."""
    try:
        return json.loads(read_text(path))
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def check_picture_size(height: int, width: int) -> None:
    """Refuse pictures that would take gigabytes once they are decoded or resized."""
    if height * width > MOST_PIXELS:
        raise ValueError(f"it has {width} x {height} px: at most {MOST_PIXELS} pixels are read")
    if max(height, width) > MOST_RATIO * min(height, width):
        raise ValueError(f"it has {width} x {height} px: its long side is more than {MOST_RATIO} times the short one")


HAIR = 1e-3
"""How far values may lie outside [0, 1], where resizing has overshot; they are clamped."""


def require_range(low: float, high: float) -> None:
    """Refuse images whose smallest and largest value are not finite, or not in [0, 1]."""
    if not (low - low == 0 and high - high == 0):
        raise UserError("images must be finite; got NaN or infinity: drop or repair the batch", code="image-range")
    if low < -HAIR or high > 1 + HAIR:
        hint = "divide by 255" if low >= -HAIR else "the model normalises by itself: pass plain pixels"
        raise UserError(f"images must be in [0, 1]; got {low:g} to {high:g}: {hint}", code="image-range")
