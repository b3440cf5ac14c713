"""Limits on input files and images, checked before anything large is read or allocated.

Values outside of a limit raise ValueError with the reason; the caller adds which file it is and what to do.
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
"""Bytes of an array that is read into memory; the largest part of CIFAR has 154 million."""
MOST_PIXELS = 1 << 26
"""Pixels of a picture, 8192 x 8192: no picture of ImageNet has more."""
MOST_RATIO = 100
"""Ratio of the long side of a picture to its short side."""
MOST_SIDE = 4096
"""Pixels of a side of a model's input."""


def check_file(path: str | Path, most: int | None = None) -> None:
    """Refuse pipes and devices, which may never end, and files of more than `most` bytes."""
    status = os.stat(path)
    if not stat.S_ISREG(status.st_mode):
        raise ValueError("it is not a regular file")
    if most is not None and status.st_size > most:
        raise ValueError(f"it has {status.st_size} bytes; the limit is {most}")


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


def check_picture_size(height: int, width: int, most: int = MOST_PIXELS) -> None:
    """Refuse pictures that would take gigabytes of memory when they are decoded or resized."""
    if height * width > most:
        raise ValueError(f"it has {width} x {height} px; the limit is {most} pixels")
    if max(height, width) > MOST_RATIO * min(height, width):
        raise ValueError(f"it has {width} x {height} px: its long side is more than {MOST_RATIO} times the short one")


HAIR = 1e-3
"""Tolerance of the range [0, 1]: resizing overshoots; such values are clamped."""


def require_range(low: float, high: float) -> None:
    """Refuse images whose smallest and largest value are not finite, or not in [0, 1]."""
    if not (low - low == 0 and high - high == 0):
        raise UserError("images must be finite; got NaN or infinity: drop or repair the batch", code="image-range")
    if low < -HAIR or high > 1 + HAIR:
        hint = "divide by 255" if low >= -HAIR else "pass pixels before normalisation, which the model does"
        raise UserError(f"images must be in [0, 1]; got {low:g} to {high:g}: {hint}", code="image-range")
