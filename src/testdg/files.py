"""Files: atomic writes, locks, checksums, and write errors as user errors."""

import hashlib
import json
import os
import secrets
import sys
import tomllib
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from safetensors import SafetensorError

from testdg.errors import UserError, visible

_REMEDY = "free some space, or choose another folder with --out"
FRESH = ".new"
"""Suffix of files that are written next to the one that they replace."""
_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n")


class Busy(UserError):
    """Another process holds the lock."""

    code = "busy"


@contextmanager
def writing(folder: Path) -> Iterator[None]:
    """Turn a failure to write (no space, no permission) into a user error."""
    try:
        yield
    except OSError as error:
        where = error.filename or folder
        raise UserError(f"cannot write {where}: {error.strerror or error}; {_REMEDY}", code="cannot-write") from error
    except SafetensorError as error:
        raise UserError(f"cannot write in {folder}: {error}; {_REMEDY}", code="cannot-write") from error


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Replace a file atomically: write to the unique path that this yields; it is synced and renamed at the end."""
    fresh = path.with_name(f".{path.name}.{os.getpid()}-{secrets.token_hex(4)}{FRESH}")
    try:
        yield fresh
        with fresh.open("r+b") as file:
            os.fsync(file.fileno())
        fresh.replace(path)
        sync_folder(path.parent)
    except BaseException:
        fresh.unlink(missing_ok=True)
        raise


def replace_text(path: Path, text: str) -> None:
    """Write a text file atomically."""
    with replacing(path) as fresh:
        fresh.write_text(text, encoding="utf-8", newline="\n")


def write_files(folder: Path, files: Mapping[str, bytes]) -> None:
    """Write files by their paths in a folder, each atomically."""
    with writing(folder):
        for name, data in files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            with replacing(folder / name) as fresh:
                fresh.write_bytes(data)


def read_toml(path: Path, what: str) -> dict[str, Any]:
    """Read a TOML file; `what` names its purpose in errors, such as "grid file"."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"{what} {path} cannot be read: {error.strerror or error}", "unreadable-file") from error
    except ValueError as error:
        raise UserError(f"{what} {path} is not TOML: {error}", "damaged-file") from error


def sync_folder(folder: Path) -> None:
    """Sync the names in a folder to disk, so that a rename survives a power failure; Windows does so automatically."""
    if sys.platform == "win32":
        return
    number = os.open(folder, os.O_RDONLY)
    try:
        with suppress(OSError):  # some network file systems cannot
            os.fsync(number)
    finally:
        os.close(number)


def checksum(values: object, size: int = 16) -> str:
    """Hexadecimal checksum of bytes or of JSON values (the order of keys does not matter), 2 x `size` digits."""
    data = values if isinstance(values, bytes) else json.dumps(values, sort_keys=True).encode()
    return hashlib.blake2b(data, digest_size=size).hexdigest()


def file_checksum(path: Path) -> str:
    """Length and CRC-32 of a file: fast, because every saved state is read for it."""
    code = size = 0
    with path.open("rb") as file:
        while part := file.read(1 << 24):
            code, size = zlib.crc32(part, code), size + len(part)
    return f"{size}-{code:08x}"


def cache_folder() -> Path:
    """$TESTDG_CACHE, or the user's cache folder."""
    if chosen := os.environ.get("TESTDG_CACHE"):
        return Path(chosen)
    base = os.environ.get("LOCALAPPDATA") or os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "testdg"


class Lock(NamedTuple):
    """A lock on an open file."""

    path: Path
    file: BinaryIO

    @property
    def valid(self) -> bool:
        """Whether the path still names the locked file; if it was deleted, the lock protects nothing."""
        try:
            return os.path.samestat(os.fstat(self.file.fileno()), self.path.stat())
        except OSError:
            return False


@contextmanager
def locked(path: Path, message: str) -> Iterator[Lock]:
    """Lock a file; raise Busy at once if another process holds the lock.

    The lock belongs to the open file, so the system releases it however the process ends. A lock file whose existence
    is the lock, the fallback of some libraries on file systems without locks, would outlive a killed process.
    """
    with writing(path.parent):
        file = path.open("a+b")
    with file:
        try:
            if sys.platform == "win32":
                import msvcrt

                msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
            else:
                import fcntl

                fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise Busy(message) from error
        lock = Lock(path, file)
        if not lock.valid:  # deleted between opening and locking
            raise Busy(message)
        yield lock


def csv_cell(value: Any) -> Any:
    """A value that a spreadsheet does not read as a formula."""
    if not isinstance(value, str):
        return value
    return visible(f"'{value}" if value.lstrip(" ")[:1] in _FORMULA else value)
