"""Readers of CIFAR folders: the pickled batches of the clean data, and the arrays of the corrupted data."""

from __future__ import annotations

import pickle
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from testdg.data.stream import Samples
from testdg.errors import UserError

CLEAN_FOLDER = "cifar-10-batches-py"
CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
TRAIN_BATCHES = tuple(f"data_batch_{number}" for number in range(1, 6))
SEVERITIES = 5


def _latin1(text: str, encoding: str = "latin1") -> bytes:
    """What older pickles call to make bytes."""
    if encoding != "latin1":
        raise pickle.UnpicklingError(f"bytes in the encoding {encoding!r}")
    return text.encode("latin1")


_RECONSTRUCT: Any = np.zeros(1).__reduce__()[0]
_FROM_BUFFER: Any = np.zeros(1).__reduce_ex__(5)[0]
_ALLOWED: dict[tuple[str, str], Callable[..., Any]] = {
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): np.dtype,
    ("numpy.core.multiarray", "_reconstruct"): _RECONSTRUCT,
    ("numpy._core.multiarray", "_reconstruct"): _RECONSTRUCT,
    ("numpy.core.numeric", "_frombuffer"): _FROM_BUFFER,
    ("numpy._core.numeric", "_frombuffer"): _FROM_BUFFER,
    ("_codecs", "encode"): _latin1,
}


class _ArraysOnly(pickle.Unpickler):
    """An unpickler that makes plain values and numpy arrays, and refuses everything else."""

    def find_class(self, module: str, name: str) -> Any:
        """Look up one of the few names that arrays need."""
        if (module, name) not in _ALLOWED:
            raise _Refused(f"{module}.{name}")
        return _ALLOWED[module, name]


class _Refused(Exception):
    """A pickle asked for something that is not an array."""


def read_pickle(path: Path) -> dict[str, Any]:
    """Read a pickled dictionary of plain values and arrays without executing anything in it."""
    try:
        with path.open("rb") as file:
            content = _ArraysOnly(file, encoding="bytes").load()
    except FileNotFoundError as error:
        raise UserError(f"{path} is missing: expected a pickled batch of CIFAR-10 (python version)") from error
    except _Refused as error:
        raise UserError(f"{path} asks for {error}, which is not an array and could execute code: refused") from error
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}") from error
    except Exception as error:  # a damaged pickle raises nearly anything
        raise UserError(f"{path} is damaged: {error}; download it again") from error
    if not isinstance(content, dict):
        raise UserError(f"{path} holds a {type(content).__name__}: expected a dictionary with data and labels")
    return {key.decode() if isinstance(key, bytes) else str(key): value for key, value in content.items()}


def read_batch(path: Path) -> Samples:
    """Read one batch file: N rows of 3072 bytes, red, green, blue."""
    content = read_pickle(path)
    data, labels = content.get("data"), content.get("labels")
    if not isinstance(data, np.ndarray) or data.dtype != np.uint8 or data.ndim != 2 or data.shape[1] != 3072:
        found = f"{data.dtype} {data.shape}" if isinstance(data, np.ndarray) else type(data).__name__
        raise UserError(f"{path}: data must be uint8 of shape (N, 3072); got {found}")
    if not isinstance(labels, list) or len(labels) != len(data):
        raise UserError(f"{path}: labels must be a list of {len(data)} numbers")
    return Samples(torch.from_numpy(data.copy()).view(-1, 3, 32, 32), torch.tensor(labels, dtype=torch.int64))


def find_clean(data: Path) -> Path:
    """Find the folder of clean batches: the data folder itself, or inside it."""
    return next((f for f in (data / CLEAN_FOLDER, data) if (f / "test_batch").exists()), data / CLEAN_FOLDER)


def read_test(data: Path) -> Samples:
    """Read the clean test images."""
    return read_batch(find_clean(data) / "test_batch")


def read_train(data: Path) -> Samples:
    """Read the clean training images that are there; warn where some are missing."""
    folder = find_clean(data)
    there = [folder / name for name in TRAIN_BATCHES if (folder / name).exists()]
    if not there:
        raise UserError(f"{folder / TRAIN_BATCHES[0]} is missing: expected the training batches of CIFAR-10")
    parts = [read_batch(path) for path in there]
    train = Samples(torch.cat([part.images for part in parts]), torch.cat([part.labels for part in parts]))
    if len(there) < len(TRAIN_BATCHES):
        missing = ", ".join(name for name in TRAIN_BATCHES if not (folder / name).exists())
        warnings.warn(f"{folder}: {missing} missing; {len(train)} training images are there", stacklevel=2)
    return train


class CorruptedArray:
    """One severity of an array file of CIFAR-10-C, read from disk as it is asked for."""

    def __init__(self, path: Path, severity: int) -> None:
        rows = _open_array(path)
        if rows.dtype != np.uint8 or rows.ndim != 4 or rows.shape[1:] != (32, 32, 3) or len(rows) % SEVERITIES:
            expected = "expected uint8 (50000, 32, 32, 3), five severities stacked"
            raise UserError(f"{path} holds {rows.dtype} {rows.shape}: {expected}")
        each = len(rows) // SEVERITIES
        self.rows = rows[(severity - 1) * each : severity * each]

    def __len__(self) -> int:
        """Number of images."""
        return len(self.rows)

    def read(self, start: int, stop: int) -> Tensor:
        """Images `start` to `stop`."""
        return torch.from_numpy(np.array(self.rows[start:stop])).permute(0, 3, 1, 2).contiguous()


def read_labels(path: Path, images: int) -> Tensor:
    """Read the labels of one severity; they repeat for each."""
    labels = _open_array(path)
    if labels.ndim != 1 or len(labels) < images or not np.issubdtype(labels.dtype, np.integer):
        raise UserError(f"{path} holds {labels.dtype} {labels.shape}: expected at least {images} whole numbers")
    return torch.from_numpy(np.array(labels[:images])).long()


def _open_array(path: Path) -> np.ndarray[Any, np.dtype[Any]]:
    try:
        array: np.ndarray[Any, np.dtype[Any]] = np.load(path, mmap_mode="r", allow_pickle=False)
    except FileNotFoundError as error:
        raise UserError(f"{path} is missing: expected the arrays of CIFAR-10-C and their labels.npy") from error
    except (OSError, ValueError, EOFError) as error:
        raise UserError(f"{path} is damaged: {error}; download it again") from error
    return array
