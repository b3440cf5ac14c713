"""Readers of clean CIFAR-10 and CIFAR-100: the pickled batches, without executing them, or one .npz file."""

import warnings
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from testdg.data.arrays import read_archive, to_labels
from testdg.data.corruptions import CIFAR as PARAMETERS
from testdg.data.corruptions import EXTRA, STANDARD_ORDER, ParameterSet
from testdg.data.pickled import read_pickle
from testdg.data.stream import LabelledImages
from testdg.errors import UserError


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


CIFAR10 = Cifar(
    title="CIFAR-10",
    folder="cifar-10-batches-py",
    train=tuple(f"data_batch_{number}" for number in range(1, 6)),
    test="test_batch",
    labels="labels",
    archive="cifar10.npz",
    stored="CIFAR-10-C",
    classes=("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"),
)

_CLASSES_OF_100 = """
apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus butterfly camel can
castle caterpillar cattle chair chimpanzee clock cloud cockroach couch crab crocodile cup dinosaur dolphin
elephant flatfish forest fox girl hamster house kangaroo keyboard lamp lawn_mower leopard lion lizard lobster
man maple_tree motorcycle mountain mouse mushroom oak_tree orange orchid otter palm_tree pear pickup_truck
pine_tree plain plate poppy porcupine possum rabbit raccoon ray road rocket rose sea seal shark shrew skunk
skyscraper snail snake spider squirrel streetcar sunflower sweet_pepper table tank telephone television tiger
tractor train trout tulip turtle wardrobe whale willow_tree wolf woman worm
"""

CIFAR100 = Cifar(
    title="CIFAR-100",
    folder="cifar-100-python",
    train=("train",),
    test="test",
    labels="fine_labels",
    archive="cifar100.npz",
    stored="CIFAR-100-C",
    classes=tuple(_CLASSES_OF_100.split()),
)


def read_batch(path: Path, cifar: Cifar = CIFAR10) -> LabelledImages:
    """Read one batch file: N rows of 3072 bytes, red, green, blue."""
    content = read_pickle(path)
    data, labels = content.get("data"), content.get(cifar.labels)
    if not isinstance(data, np.ndarray) or data.dtype != np.uint8 or data.ndim != 2 or data.shape[1] != 3072:
        found = f"{data.dtype} {data.shape}" if isinstance(data, np.ndarray) else type(data).__name__
        raise UserError(f"{path}: data must be uint8 of shape (N, 3072); got {found}", code="wrong-array")
    if not isinstance(labels, list) or len(labels) != len(data) or not all(type(n) is int for n in labels):
        raise UserError(f"{path}: {cifar.labels} must be a list of {len(data)} integers", code="wrong-labels")
    return LabelledImages(
        torch.from_numpy(data.copy()).view(-1, 3, 32, 32), to_labels(path, labels, len(cifar.classes))
    )


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
    train = LabelledImages(torch.cat([part.images for part in parts]), torch.cat([part.labels for part in parts]))
    if len(present) < len(cifar.train):
        missing = ", ".join(name for name in cifar.train if not (folder / name).exists())
        warnings.warn(f"{folder}: {missing} missing; {len(train)} training images found", stacklevel=2)
    return train
