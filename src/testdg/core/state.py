"""Folders that hold an adapter's state: safetensors and JSON, replaced in one step, nothing that can execute."""

import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from testdg.errors import UserError
from testdg.files import checksum, file_checksum, sync_folder, writing

TENSORS, VALUES = "state.safetensors", "state.json"
CHECKSUMS = "checksums"


def write_folder(folder: Path, tensors: dict[str, Tensor], about: dict[str, Any]) -> None:
    """Write a state folder beside its place, force it to disk, then rename it into place."""
    fresh, old = _beside(folder)
    shutil.rmtree(fresh, ignore_errors=True)
    try:
        with writing(folder):
            folder.parent.mkdir(parents=True, exist_ok=True)
            _write(fresh, tensors, about)
    except BaseException:
        shutil.rmtree(fresh, ignore_errors=True)  # half a state would take the room that is missing
        raise
    if folder.exists():  # otherwise the old one is the only whole state that there is
        shutil.rmtree(old, ignore_errors=True)
        folder.rename(old)
    fresh.rename(folder)
    sync_folder(folder.parent)
    shutil.rmtree(old, ignore_errors=True)


def _write(fresh: Path, tensors: dict[str, Tensor], about: dict[str, Any]) -> None:
    from safetensors.torch import save_file

    fresh.mkdir()
    save_file({name: value.detach().cpu().clone().contiguous() for name, value in tensors.items()}, fresh / TENSORS)
    sums = {"tensors": file_checksum(fresh / TENSORS), "values": checksum(about)}
    (fresh / VALUES).write_text(json.dumps({**about, CHECKSUMS: sums}, indent=1))
    for path in fresh.iterdir():
        with path.open("rb") as file:
            os.fsync(file.fileno())
    sync_folder(fresh)


def read_folder(folder: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read a state folder; after a crash in the middle of writing, the state before it."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    old = _beside(folder)[1]
    place = old if not folder.exists() and old.exists() else folder
    for name in (TENSORS, VALUES):
        if not (place / name).is_file():
            raise UserError(f"{folder} is not a saved state: {name} is missing")
    try:
        about = json.loads((place / VALUES).read_text(encoding="utf-8"))
        if not isinstance(about, dict):
            raise ValueError(f"{VALUES} holds a {type(about).__name__}")
        _check(folder, place, about)
        return load_file(place / TENSORS), about
    except UserError:
        raise
    except (SafetensorError, ValueError, OSError, RecursionError) as error:
        raise UserError(f"{folder} is damaged: {error}") from error


def _check(folder: Path, place: Path, about: dict[str, Any]) -> None:
    """Hold both files against their checksums, which are taken out."""
    sums = about.pop(CHECKSUMS, None)
    if sums is None:
        raise UserError(f"{folder} is damaged, or was saved before states had checksums: it must be made again")
    if sums != {"tensors": file_checksum(place / TENSORS), "values": checksum(about)}:
        raise UserError(f"{folder} is damaged: its checksums do not fit")


def tidy(folder: Path) -> None:
    """Clear away what a crash in the middle of writing has left beside a state folder."""
    fresh, old = _beside(folder)
    if not folder.exists() and old.exists():
        old.rename(folder)
        sync_folder(folder.parent)
    for leftover in (fresh, old):
        shutil.rmtree(leftover, ignore_errors=True)


def _beside(folder: Path) -> tuple[Path, Path]:
    """Where a state is written, and where the one before it waits meanwhile."""
    return folder.with_name(folder.name + ".new"), folder.with_name(folder.name + ".old")


def below(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Tensors whose names begin with a prefix, without the prefix."""
    return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}
