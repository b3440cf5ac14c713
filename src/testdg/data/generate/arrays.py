"""The layout of CIFAR-C: one array per corruption, five severities stacked, and the labels."""

from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.lib import format as npy
from torch import Tensor

from testdg.data.benchmarks.base import fingerprint
from testdg.data.corrupted import Corrupt
from testdg.data.corruptions import CIFAR, SEVERITIES, FrostTextures, ParameterSet, corrupt_uint8
from testdg.data.generate.folder import CorruptOptions, Count, Tell, claimed
from testdg.data.generate.workers import workers
from testdg.data.stream import Samples
from testdg.errors import UserError
from testdg.files import replacing

_CHUNK = 500  # images of one task

Array = np.ndarray[Any, np.dtype[np.uint8]]


class _Piece(NamedTuple):
    name: str
    severity: int
    start: int


class _Source(NamedTuple):
    images: Tensor
    corrupt: Corrupt


def write_arrays(
    folder: Path,
    clean: Samples,
    frost: FrostTextures | None,
    options: CorruptOptions,
    tell: Tell,
    parameters: ParameterSet = CIFAR,
) -> None:
    """Write `<corruption>.npy`, uint8 (5 N, H, W, 3), and `labels.npy`; a corruption that is there is kept."""
    if sorted(options.severities) != list(SEVERITIES):
        raise UserError(
            f"arrays hold all five severities, one after the other; got {', '.join(map(str, options.severities))}: "
            "leave --severities out"
        )
    source = _Source(clean.images, partial(corrupt_uint8, seed=options.seed, parameters=parameters, frost=frost))
    about = options.describe(fingerprint([clean.images, clean.labels]), len(clean), frost, parameters)
    with claimed(folder, about) as manifest, workers(options.jobs, _make, source) as make:
        _write(folder / "labels.npy", (5 * len(clean),), [np.tile(clean.labels.numpy().astype(np.uint8), 5)])
        todo = [name for name in options.corruptions if not (folder / f"{name}.npy").exists()]
        count = Count(tell, 5 * len(clean) * len(todo))
        for name in options.corruptions:
            if name in todo:
                pieces = (count.passed(name, piece) for piece in make(_pieces(name, len(clean))))
                _write(folder / f"{name}.npy", (5 * len(clean), *clean.images.shape[2:], 3), pieces)
            manifest.add(name)


def _pieces(name: str, images: int) -> list[_Piece]:
    """All pieces of a corruption, in the order of its array."""
    return [_Piece(name, severity, start) for severity in SEVERITIES for start in range(0, images, _CHUNK)]


def _make(source: _Source, piece: _Piece) -> Array:
    """Corrupt one piece, (N, H, W, 3)."""
    images = source.images[piece.start : piece.start + _CHUNK]
    indices = range(piece.start, piece.start + len(images))
    corrupted = source.corrupt(images, piece.name, piece.severity, indices=indices)
    return corrupted.permute(0, 2, 3, 1).contiguous().numpy()


def _write(path: Path, shape: tuple[int, ...], pieces: Iterable[Array]) -> None:
    """Write a file of numpy's format piece by piece; it appears under its name when it is whole."""
    with replacing(path) as fresh, fresh.open("wb") as file:
        npy.write_array_header_1_0(file, {"descr": "|u1", "fortran_order": False, "shape": shape})
        for piece in pieces:
            file.write(piece.tobytes())
