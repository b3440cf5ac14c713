"""Folders that hold an adapter's state: safetensors and JSON, replaced in one step, nothing that can execute."""

import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from testdg.errors import UserError
from testdg.files import checksum, file_checksum, sync_folder, writing
from testdg.models.blocks import save_tensors

Values = dict[str, Any]
"""Plain values, ready for JSON."""
TENSORS, VALUES = "state.safetensors", "state.json"
CHECKSUMS = "checksums"
FRESH, OLD = ".new", ".old"
"""Suffixes of the folder that is being written, and of the state before it."""


def write_folder(folder: Path, tensors: dict[str, Tensor], about: Values) -> None:
    """Write a state folder under another name, force it to disk, then rename it.

    A crash at any moment leaves the new state or the old one: the old one is renamed only when the new one is complete,
    and deleted only when the new one has its name.
    """
    fresh, old = folder.with_name(folder.name + FRESH), folder.with_name(folder.name + OLD)
    shutil.rmtree(fresh, ignore_errors=True)
    try:
        with writing(folder):
            folder.parent.mkdir(parents=True, exist_ok=True)
            fresh.mkdir()
            save_tensors(tensors, fresh / TENSORS)
            sums = {"tensors": file_checksum(fresh / TENSORS), "values": checksum(about)}
            (fresh / VALUES).write_text(json.dumps({**about, CHECKSUMS: sums}, indent=1))
            for path in fresh.iterdir():
                with path.open("rb") as file:
                    os.fsync(file.fileno())
            sync_folder(fresh)
    except BaseException:
        shutil.rmtree(fresh, ignore_errors=True)  # half a state would take the space that is missing
        raise
    if folder.exists():  # otherwise the old one is the only complete state
        shutil.rmtree(old, ignore_errors=True)
        folder.rename(old)
    fresh.rename(folder)
    sync_folder(folder.parent)
    shutil.rmtree(old, ignore_errors=True)


def read_folder(folder: Path) -> tuple[dict[str, Tensor], Values]:
    """Read a state folder; after a crash in the middle of writing, the previous state."""
    old = folder.with_name(folder.name + OLD)
    place = old if not folder.exists() and old.exists() else folder
    for name in (TENSORS, VALUES):
        if not (place / name).is_file():
            raise UserError(f"{folder} is not a saved state: {name} is missing", code="no-state")
    try:
        about = json.loads((place / VALUES).read_text(encoding="utf-8"))
        if not isinstance(about, dict):
            raise ValueError(f"{VALUES} holds a {type(about).__name__}")
        if about.pop(CHECKSUMS, None) != {"tensors": file_checksum(place / TENSORS), "values": checksum(about)}:
            raise ValueError("its checksums do not match")
        return load_file(place / TENSORS), about
    except (SafetensorError, ValueError, OSError, RecursionError) as error:
        raise UserError(f"{folder} is damaged: {error}", code="damaged-state") from error


def tidy(folder: Path) -> None:
    """Delete what a crash in the middle of writing has left next to a state folder."""
    fresh, old = folder.with_name(folder.name + FRESH), folder.with_name(folder.name + OLD)
    if not folder.exists() and old.exists():
        old.rename(folder)
        sync_folder(folder.parent)
    for leftover in (fresh, old):
        shutil.rmtree(leftover, ignore_errors=True)


def below(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Tensors whose names begin with a prefix, without the prefix."""
    return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}
