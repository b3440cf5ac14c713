"""Readers of CIFAR: clean images in pickled batches or one .npz file, and the arrays of CIFAR-10-C and CIFAR-100-C."""

import math
import warnings
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np
import torch
from numpy.lib import format as npy
from torch import Tensor

from testdg.bounds import MOST_ARRAY, check_file
from testdg.data.corruptions import CIFAR as PARAMETERS
from testdg.data.corruptions import EXTRA, STANDARD_ORDER, ParameterSet
from testdg.data.pickled import read_pickle
from testdg.data.stream import Array, ImageSource, LabelledImages
from testdg.errors import UserError
from testdg.files import read_toml


@dataclass(frozen=True)
class Cifar:
    """Files, classes and corruptions of a CIFAR set."""

    title: str
    folder: str
    """Folder of the pickled batches (python version)."""
    train: tuple[str, ...]
    test: str
    labels: str
    """Key of the labels in a batch."""
    archive: str
    """The same images as one file with x_train, y_train, x_test, y_test."""
    stored: str
    """Folder of the corrupted arrays."""
    classes: tuple[str, ...]
    parameters: ParameterSet = PARAMETERS
    test_images: int = 10_000
    train_images: int = 50_000

    @property
    def needs(self) -> str:
        """Contents of a data folder, in words."""
        return f"{self.stored}/<corruption>.npy, {self.folder}/ or {self.archive}"


_SETS = msgspec.convert(read_toml(Path(__file__).with_suffix(".toml"), "data sets"), dict[str, Cifar])
CIFAR10, CIFAR100 = _SETS["cifar10"], _SETS["cifar100"]


def read_batch(path: Path, cifar: Cifar = CIFAR10) -> LabelledImages:
    """Read one batch file: N rows of 3072 bytes, red, green, blue."""
    content = read_pickle(path)
    data, labels = content.get("data"), content.get(cifar.labels)
    if not isinstance(data, np.ndarray) or data.dtype != np.uint8 or data.ndim != 2 or data.shape[1] != 3072:
        found = f"{data.dtype} {data.shape}" if isinstance(data, np.ndarray) else type(data).__name__
        raise UserError(f"{path}: data must be uint8 of shape (N, 3072); got {found}", code="wrong-array")
    if not isinstance(labels, list) or len(labels) != len(data) or not all(type(n) is int for n in labels):
        raise UserError(f"{path}: {cifar.labels} must be a list of {len(data)} integers", code="wrong-labels")
    images = torch.from_numpy(data.copy()).view(-1, 3, 32, 32)
    return LabelledImages(images, to_labels(path, labels, len(cifar.classes)))


def find_clean(data: Path, cifar: Cifar = CIFAR10) -> Path:
    """Find the folder of clean batches: in the data folder, or the data folder itself."""
    folders = (data / cifar.folder, data)
    names = (cifar.test, *cifar.train)
    return next((f for f in folders if any((f / name).is_file() for name in names)), folders[0])


def find_arrays(data: Path, cifar: Cifar) -> Path | None:
    """Find the folder of stored arrays: in the data folder, or the folder itself if no other set has its name."""
    names = ["labels", *STANDARD_ORDER, *EXTRA]
    others = {other.stored for other in (CIFAR10, CIFAR100) if other is not cifar}
    folders = (data / cifar.stored, *([] if data.name in others else [data]))
    return next((f for f in folders if any((f / f"{name}.npy").exists() for name in names)), None)


def has_clean(data: Path, cifar: Cifar = CIFAR10) -> bool:
    """Whether clean test images exist, in either format."""
    return (find_clean(data, cifar) / cifar.test).is_file() or (data / cifar.archive).is_file()


def read_test(data: Path, cifar: Cifar = CIFAR10) -> LabelledImages:
    """Read the clean test images: the pickled batch, or the .npz file if there is none."""
    batch = find_clean(data, cifar) / cifar.test
    if not batch.exists() and (data / cifar.archive).exists():
        return read_archive(data / cifar.archive, "test", len(cifar.classes))
    return read_batch(batch, cifar)


def read_train(data: Path, cifar: Cifar = CIFAR10) -> LabelledImages:
    """Read the existing clean training images; warn if some are missing."""
    folder = find_clean(data, cifar)
    present = [folder / name for name in cifar.train if (folder / name).exists()]
    if not present and (data / cifar.archive).exists():
        return read_archive(data / cifar.archive, "train", len(cifar.classes))
    if not present:
        raise UserError(
            f"{folder / cifar.train[0]} is missing: expected the training batches of {cifar.title}", code="missing-file"
        )
    parts = [read_batch(path, cifar) for path in present]
    images = torch.cat([part.images for part in parts])
    train = LabelledImages(images, torch.cat([part.labels for part in parts]))
    if len(present) < len(cifar.train):
        missing = ", ".join(name for name in cifar.train if not (folder / name).exists())
        warnings.warn(f"{folder}: {missing} missing; {len(train)} training images found", stacklevel=2)
    return train


class CorruptedArray(ImageSource):
    """One severity of an array file of a CIFAR-C set, read from disk on demand."""

    def __init__(self, path: Path, severity: int) -> None:
        rows = open_array(path)
        if rows.dtype != np.uint8 or rows.ndim != 4 or rows.shape[1:] != (32, 32, 3) or len(rows) % 5:
            expected = "expected uint8 (50000, 32, 32, 3), five severities stacked"
            raise UserError(f"{path} has {rows.dtype} {rows.shape}: {expected}", code="wrong-array")
        if not len(rows):
            raise UserError(f"{path} has no images: download it again", code="no-images")
        each = len(rows) // 5
        self.rows = rows[(severity - 1) * each : severity * each]

    def __len__(self) -> int:
        return len(self.rows)

    def take(self, indices: Sequence[int]) -> Tensor:
        return to_images(self.rows[list(indices)])


def open_array(path: Path) -> Array:
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
    if len(labels) not in (images, 5 * images):
        counts = f"{array} has {5 * images} images, but {path.name} {len(labels)} labels"
        raise UserError(
            f"{counts}: expected five severities of the same images; download both again", code="wrong-labels"
        )
    if len(labels) > images and not np.array_equal(labels, np.tile(labels[:images], 5)):
        raise UserError(f"{path}: the labels of the five severities differ; download it again", code="wrong-labels")
    return to_labels(path, labels[:images], classes)


def to_labels(path: Path, labels: Array | list[int], classes: int) -> Tensor:
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
            f"{path}: {name} has {size} bytes unpacked, the limit is {MOST_ARRAY}: write it again", code="too-large"
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
