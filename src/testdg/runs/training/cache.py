"""Where what was trained once is kept for the next time."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from safetensors import SafetensorError

from testdg.errors import UserError


def cache_folder() -> Path:
    """Where trained source models are kept: $TESTDG_CACHE, or the user's cache folder."""
    if chosen := os.environ.get("TESTDG_CACHE"):
        return Path(chosen)
    base = os.environ.get("LOCALAPPDATA") or os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "testdg"


@contextmanager
def kept(folder: Path) -> Iterator[Path]:
    """Give a place beside a folder, made sure of before the work, and rename it after; whoever comes first wins."""
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
