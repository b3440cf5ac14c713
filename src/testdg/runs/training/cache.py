"""The cache folder: source models and warm-ups that were computed once."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from safetensors import SafetensorError

from testdg.errors import UserError


def cache_folder() -> Path:
    """$TESTDG_CACHE, or the user's cache folder."""
    if chosen := os.environ.get("TESTDG_CACHE"):
        return Path(chosen)
    base = os.environ.get("LOCALAPPDATA") or os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "testdg"


@contextmanager
def cached_folder(folder: Path) -> Iterator[Path]:
    """Yield a temporary folder next to `folder`, and rename it afterwards unless another process was faster."""
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=folder.name + "-", dir=folder.parent) as place:
            yield Path(place) / "model"
            if not folder.exists():
                (Path(place) / "model").rename(folder)
    except (OSError, SafetensorError) as error:
        if not folder.exists():
            reason = getattr(error, "strerror", None) or error
            remedy = "point TESTDG_CACHE to a folder with space that you may write"
            message = f"cannot keep the source model in {folder.parent}: {reason}; {remedy}"
            raise UserError(message, code="cannot-write") from error
