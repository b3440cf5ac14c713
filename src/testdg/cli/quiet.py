"""Keeping other libraries quiet."""

import os
from collections.abc import Iterable
from pathlib import Path


def quieten(models: Iterable[str | None]) -> None:
    """Keep other libraries' chatter away; only the download of a model keeps its bar."""
    for library in ("TRANSFORMERS", "HF_HUB"):
        os.environ.setdefault(f"{library}_VERBOSITY", "error")
    if all(model is None or Path(model).exists() for model in models):
        os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
