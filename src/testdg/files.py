"""Small file habits: write in one step, one writer at a time, checksums, errors as sentences."""

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
_FRESH = ".new"
_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n")


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
    """Give a name beside a file that nobody else has; what is written there is forced to disk and put in its place."""
    fresh = path.with_name(f".{path.name}.{os.getpid()}-{secrets.token_hex(4)}{_FRESH}")
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
    """Write a text file in one step."""
    with replacing(path) as fresh:
        fresh.write_text(text, encoding="utf-8", newline="\n")


def write_files(folder: Path, files: Mapping[str, bytes]) -> None:
    """Write files by their paths in a folder, each in one step."""
    with writing(folder):
        for name, data in files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            with replacing(folder / name) as fresh:
                fresh.write_bytes(data)


def read_toml(path: Path, what: str) -> dict[str, Any]:
    """Read a TOML file; `what` the user takes it for stands in the sentence about one that is none."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"{what} {path} cannot be read: {error.strerror or error}") from error
    except ValueError as error:
        raise UserError(f"{what} {path} is not TOML: {error}") from error


def sync_folder(folder: Path) -> None:
    """Force the names in a folder to disk, so that a rename outlives a power cut; Windows does it by itself."""
    if sys.platform == "win32":
        return
    number = os.open(folder, os.O_RDONLY)
    try:
        with suppress(OSError):  # some network file systems cannot
            os.fsync(number)
    finally:
        os.close(number)


def checksum(values: Any, size: int = 16) -> str:
    """Hexadecimal digits of `size` bytes that stand for plain values, whatever the order of keys; or for bytes."""
    data = values if isinstance(values, bytes) else json.dumps(values, sort_keys=True).encode()
    return hashlib.blake2b(data, digest_size=size).hexdigest()


def file_checksum(path: Path) -> str:
    """Length and CRC-32 of a file: fast, since it is read for every saved state."""
    code = size = 0
    with path.open("rb") as file:
        while part := file.read(1 << 24):
            code, size = zlib.crc32(part, code), size + len(part)
    return f"{size}-{code:08x}"


class Lock(NamedTuple):
    """A lock that is held on a file of a folder."""

    path: Path
    file: BinaryIO

    @property
    def valid(self) -> bool:
        """Whether the file is still there: a lock on a deleted one keeps nobody out."""
        try:
            return os.path.samestat(os.fstat(self.file.fileno()), self.path.stat())
        except OSError:
            return False


@contextmanager
def locked(path: Path, message: str) -> Iterator[Lock]:
    """Hold a lock that ends with the process, however it ends; Busy where another one holds it."""
    with writing(path.parent):
        file = path.open("a+b")
    with file:
        try:
            _lock(file.fileno())
        except OSError as error:
            raise Busy(message) from error
        lock = Lock(path, file)
        if not lock.valid:  # deleted between opening and locking
            raise Busy(message)
        yield lock


class OneWriter:
    """A folder that one process at a time writes in: a base of run folders, of streams and of trainings."""

    def __init__(self, folder: Path, writer: str, remedy: str) -> None:
        self._folder = folder
        self._busy = f"{folder} is being written by another {writer}: {remedy}"
        self._lock: Lock | None = None

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Make the folder, keep others out of it, and delete what killed processes have left of replacing a file."""
        with writing(self._folder):
            self._folder.mkdir(parents=True, exist_ok=True)
        with locked(self._folder / ".lock", self._busy) as self._lock:
            for path in self._folder.glob(f".*{_FRESH}"):
                with suppress(OSError):
                    path.unlink()
            yield

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Write in a folder that is still the one that was locked: a deleted one is never made again."""
        if self._lock is not None and not self._lock.valid:
            told = f"{self._folder} was deleted or replaced while it was being written"
            raise UserError(f"{told}: start the command again")
        with writing(self._folder):
            yield


def _lock(number: int) -> None:
    if sys.platform == "win32":
        import msvcrt

        msvcrt.locking(number, msvcrt.LK_NBLCK, 1)
    else:
        import fcntl

        fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)


def csv_cell(value: Any) -> Any:
    """A value whose text a spreadsheet does not take for a formula."""
    if not isinstance(value, str):
        return value
    return visible(f"'{value}" if value.lstrip(" ")[:1] in _FORMULA else value)
