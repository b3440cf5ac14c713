"""cifar10-c, cifar100-c: the published arrays of a CIFAR-C set, or the corruptions made from the clean test images."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import ClassVar

from testdg.data.arrays import CorruptedArray, read_labels
from testdg.data.benchmarks.base import fingerprint
from testdg.data.benchmarks.corruption import CorruptionBenchmark, check_corruption
from testdg.data.benchmarks.registry import register
from testdg.data.cifar import CIFAR10, CIFAR100, Cifar, find_arrays, has_clean, read_test, read_train
from testdg.data.manifest import stored_origin
from testdg.data.stream import Domain, Samples
from testdg.errors import UserError


class CifarC(CorruptionBenchmark):
    """Test images of a CIFAR set under corruptions."""

    kind: ClassVar[Cifar]
    paper = MappingProxyType({"size": (384, 384), "resample": "bilinear", "mean": (0.0,) * 3, "std": (1.0,) * 3})
    data: Path

    @cached_property
    def arrays(self) -> Path | None:
        """The folder of stored arrays; None where there is none."""
        found = find_arrays(self.data, self.kind)
        if found is None and not has_clean(self.data, self.kind):
            clean = f"{self.kind.folder}/{self.kind.test} or {self.kind.archive}"
            expected = f"expected {self.kind.arrays}/gaussian_noise.npy (and so on), {clean}"
            raise UserError(f"data folder {self.data} holds no {self.kind.title}: {expected}")
        return found

    def train(self) -> Samples:
        """The clean training images that are there."""
        return read_train(self.data, self.kind)

    def test(self) -> Samples:
        """The clean test images."""
        return read_test(self.data, self.kind)

    def make_domain(self, name: str, severity: int) -> Domain:
        """One corruption: from its array where there are arrays, else made from the clean images."""
        check_corruption(name)
        if self.arrays is None:
            return super().make_domain(name, severity)
        array = self.arrays / f"{name}.npy"
        images = CorruptedArray(array, severity)
        labels = read_labels(array, len(images), len(self.classes))
        return Domain(name, severity, images, labels[: self.options.images])

    def origin(self) -> str:
        """Where the images of the stream come from, in words."""
        if self.arrays is None:
            return super().origin()
        return stored_origin(self.arrays, f"published arrays of {self.kind.arrays}")

    def fingerprint(self) -> str:
        """Identify the images: the clean ones, or labels and the first image of each array."""
        if self.arrays is None:
            return super().fingerprint()
        domains = self.domains()
        return fingerprint([domains[0].image_labels(), *(domain.source.read(0, 1) for domain in domains)])


@register
class Cifar10C(CifarC):
    """CIFAR-10 test images under corruptions."""

    name = "cifar10-c"
    title = "CIFAR-10, 15 corruptions (and 4 extra)"
    kind = CIFAR10
    classes = CIFAR10.classes
    batch_size = 40
    needs = "CIFAR-10-C/<corruption>.npy, cifar-10-batches-py/ or cifar10.npz"


@register
class Cifar100C(CifarC):
    """CIFAR-100 test images under corruptions."""

    name = "cifar100-c"
    title = "CIFAR-100, 15 corruptions (and 4 extra)"
    kind = CIFAR100
    classes = CIFAR100.classes
    batch_size = 50
    needs = "CIFAR-100-C/<corruption>.npy, cifar-100-python/ or cifar100.npz"
