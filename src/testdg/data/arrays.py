"""Array files: the five stacked severities of a CIFAR-C set, which are mapped into memory, and .npz archives."""

import math
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.lib import format as npy
from torch import Tensor

from testdg.bounds import MOST_ARRAY, check_file
from testdg.data.stream import ImageSource, LabelledImages
from testdg.errors import UserError

Array = np.ndarray[Any, np.dtype[Any]]
SEVERITIES = 5


class CorruptedArray(ImageSource):
    """One severity of an array file of a CIFAR-C set, read from disk on demand."""

    def __init__(self, path: Path, severity: int) -> None:
        rows = open_array(path)
        if rows.dtype != np.uint8 or rows.ndim != 4 or rows.shape[1:] != (32, 32, 3) or len(rows) % SEVERITIES:
            expected = "expected uint8 (50000, 32, 32, 3), five severities stacked"
            raise UserError(f"{path} has {rows.dtype} {rows.shape}: {expected}", code="wrong-array")
        if not len(rows):
            raise UserError(f"{path} has no images: download it again", code="no-images")
        each = len(rows) // SEVERITIES
        self.rows = rows[(severity - 1) * each : severity * each]

    def __len__(self) -> int:
        return len(self.rows)

    def take(self, indices: Sequence[int]) -> Tensor:
        return to_images(self.rows[list(indices)])


def open_array(path: Path) -> Array:
    """Map an array file into memory."""
    try:
        check_file(path)
        array: Array = npy.open_memmap(path, mode="r")
    except FileNotFoundError as error:
        raise UserError(
            f"{path} is missing: expected the arrays of a CIFAR-C set and their labels.npy", code="missing-file"
        ) from error
    except (OSError, ValueError, EOFError) as error:
        raise UserError(f"{path} is damaged: {error}; download it again", code="damaged-file") from error
    return array


def read_labels(array: Path, images: int, classes: int) -> Tensor:
    """Read the labels next to an array, for one severity; published sets repeat them for each."""
    path = array.with_name("labels.npy")
    labels = open_array(path)
    if not np.issubdtype(labels.dtype, np.integer) or labels.ndim != 1:
        raise UserError(f"{path} has {labels.dtype} {labels.shape}: expected a row of integers", code="wrong-array")
    if len(labels) not in (images, SEVERITIES * images):
        counts = f"{array} has {SEVERITIES * images} images, but {path.name} {len(labels)} labels"
        raise UserError(
            f"{counts}: expected five severities of the same images; download both again", code="wrong-labels"
        )
    if len(labels) > images and not np.array_equal(labels, np.tile(labels[:images], SEVERITIES)):
        raise UserError(f"{path}: the labels of the five severities differ; download it again", code="wrong-labels")
    return to_labels(path, labels[:images], classes)


def to_labels(path: Path, labels: Any, classes: int) -> Tensor:
    """Labels as a tensor; refuse numbers that are not classes."""
    try:
        numbers = torch.from_numpy(np.array(labels, dtype=np.int64)).reshape(-1)
    except OverflowError:
        raise UserError(
            f"{path}: labels must be 0 to {classes - 1}; got a number of more than 63 bits", code="wrong-labels"
        ) from None
    wrong = numbers[(numbers < 0) | (numbers >= classes)]
    if len(wrong):
        raise UserError(f"{path}: labels must be 0 to {classes - 1}; got {int(wrong[0])}", code="wrong-labels")
    return numbers


def to_images(rows: Array) -> Tensor:
    """Copy (N, H, W, 3) to a tensor (N, 3, H, W)."""
    return torch.from_numpy(np.array(rows)).permute(0, 3, 1, 2).contiguous()


def read_archive(path: Path, part: str, classes: int) -> LabelledImages:
    """Read `x_<part>` (N, 32, 32, 3) and `y_<part>` of an .npz file."""
    try:
        check_file(path)
        with zipfile.ZipFile(path) as archive:
            images, labels = _member(path, archive, f"x_{part}"), _member(path, archive, f"y_{part}")
    except UserError:
        raise
    except Exception as error:  # a damaged zip file raises nearly anything
        raise UserError(f"{path} is damaged: {error}; make it again", code="damaged-file") from error
    if images.dtype != np.uint8 or images.ndim != 4 or images.shape[1:] != (32, 32, 3):
        raise UserError(
            f"{path}: x_{part} must be uint8 of shape (N, 32, 32, 3); got {images.dtype} {images.shape}",
            code="wrong-array",
        )
    if not np.issubdtype(labels.dtype, np.integer) or labels.size != len(images):
        raise UserError(
            f"{path}: y_{part} must be {len(images)} whole numbers; got {labels.dtype} {labels.shape}",
            code="wrong-labels",
        )
    return LabelledImages(to_images(images), to_labels(path, labels, classes))


def _member(path: Path, archive: zipfile.ZipFile, name: str) -> Array:
    """Read an array of an archive, after a check of its announced size: numpy would allocate it first."""
    if f"{name}.npy" not in archive.namelist():
        raise UserError(f"{path} has no {name}: expected x_train, y_train, x_test and y_test", code="wrong-array")
    size = archive.getinfo(f"{name}.npy").file_size
    if size > MOST_ARRAY:
        raise UserError(
            f"{path}: {name} unpacks to {size} bytes, more than {MOST_ARRAY}: make it again", code="too-large"
        )
    with archive.open(f"{name}.npy") as file:
        version = npy.read_magic(file)
        if version not in ((1, 0), (2, 0)):
            raise ValueError(f"its arrays are of version {version[0]}.{version[1]}")
        read_header = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
        shape, _, dtype = read_header(file)
        if min(shape, default=0) < 0 or math.prod(shape) * max(dtype.itemsize, 1) > size:
            raise ValueError(f"an array of shape {shape} does not fit into {size} bytes")
        file.seek(0)
        found: Array = npy.read_array(file, allow_pickle=False)
    return found
