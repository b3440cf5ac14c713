"""Small file habits: write in one step, one writer at a time, errors as sentences."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from safetensors import SafetensorError

from testdg.errors import UserError

_REMEDY = "free some space, or choose another folder with --out"


class Busy(UserError):
    """Another process is at it."""


@contextmanager
def writing(folder: Path) -> Iterator[None]:
    """Turn a failure to write (no space, no permission) into a sentence."""
    try:
        yield
    except OSError as error:
        where = error.filename or folder
        raise UserError(f"cannot write {where}: {error.strerror or error}; {_REMEDY}") from error
    except SafetensorError as error:
        raise UserError(f"cannot write in {folder}: {error}; {_REMEDY}") from error


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Give a name beside a file; what is written there is forced to disk and renamed into place."""
    fresh = path.with_name(path.name + ".new")
    try:
        yield fresh
        with fresh.open("r+b") as file:
            os.fsync(file.fileno())
        fresh.replace(path)
    except BaseException:
        fresh.unlink(missing_ok=True)
        raise


def replace_text(path: Path, text: str) -> None:
    """Write a text file in one step."""
    with replacing(path) as fresh:
        fresh.write_text(text, encoding="utf-8", newline="\n")


@contextmanager
def locked(path: Path, message: str) -> Iterator[None]:
    """Hold a lock that ends with the process, however it ends; Busy where another one holds it."""
    with writing(path.parent):
        file = path.open("a+b")
    with file:
        try:
            _lock(file.fileno())
        except OSError as error:
            raise Busy(message) from error
        yield


def _lock(number: int) -> None:
    if sys.platform == "win32":
        import msvcrt

        msvcrt.locking(number, msvcrt.LK_NBLCK, 1)
    else:
        import fcntl

        fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
