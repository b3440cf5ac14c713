"""Folders that hold an adapter's state: safetensors and JSON, replaced in one step, nothing that can execute."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

from torch import Tensor

from testdg.errors import UserError


def write_folder(folder: Path, tensors: dict[str, Tensor], about: dict[str, Any]) -> None:
    """Write a state folder beside its place, force it to disk, then rename it into place."""
    from safetensors.torch import save_file

    folder.parent.mkdir(parents=True, exist_ok=True)
    fresh, old = folder.with_name(folder.name + ".new"), folder.with_name(folder.name + ".old")
    shutil.rmtree(fresh, ignore_errors=True)
    fresh.mkdir()
    save_file(
        {name: value.detach().cpu().clone().contiguous() for name, value in tensors.items()},
        fresh / "state.safetensors",
    )
    (fresh / "state.json").write_text(json.dumps(about, indent=1))
    for path in fresh.iterdir():
        with path.open("rb") as file:
            os.fsync(file.fileno())
    if folder.exists():  # otherwise the old one is the only whole state that there is
        shutil.rmtree(old, ignore_errors=True)
        folder.rename(old)
    fresh.rename(folder)
    shutil.rmtree(old, ignore_errors=True)


def read_folder(folder: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read a state folder; after a crash in the middle of writing, the state before it."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    old = folder.with_name(folder.name + ".old")
    place = old if not folder.exists() and old.exists() else folder
    for name in ("state.safetensors", "state.json"):
        if not (place / name).is_file():
            raise UserError(f"{folder} is not a saved state: {name} is missing")
    try:
        tensors, about = load_file(place / "state.safetensors"), json.loads((place / "state.json").read_text())
        if not isinstance(about, dict):
            raise ValueError(f"state.json holds a {type(about).__name__}")
        return tensors, about
    except (SafetensorError, ValueError, OSError) as error:
        raise UserError(f"{folder} is damaged: {error}") from error
