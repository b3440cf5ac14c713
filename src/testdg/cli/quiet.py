"""Keeping other libraries quiet."""

from __future__ import annotations

import os


def quieten(*, downloads: bool) -> None:
    """Keep other libraries' chatter away; only the download of a model keeps its bar."""
    for library in ("TRANSFORMERS", "HF_HUB"):
        os.environ.setdefault(f"{library}_VERBOSITY", "error")
    if not downloads:
        os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
