"""cifar10-c, cifar100-c: the published arrays of a CIFAR-C set, or the corruptions made from the clean test images."""

from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import ClassVar

from testdg.data.benchmarks.base import fingerprint, register
from testdg.data.benchmarks.corruption import CorruptionBenchmark
from testdg.data.cifar import (
    CIFAR10,
    CIFAR100,
    Cifar,
    CorruptedArray,
    find_arrays,
    has_clean,
    read_labels,
    read_test,
    read_train,
)
from testdg.data.picture_sets import stored_origin
from testdg.data.stream import Domain, LabelledImages
from testdg.errors import UserError


class CifarC(CorruptionBenchmark):
    """Test images of a CIFAR set under corruptions."""

    data_set: ClassVar[Cifar]
    paper = MappingProxyType({"size": (384, 384), "resample": "bilinear", "mean": (0.0,) * 3, "std": (1.0,) * 3})
    data: Path

    @cached_property
    def arrays(self) -> Path | None:
        """The folder of stored arrays, or None."""
        folder, cifar = find_arrays(self.data, self.data_set), self.data_set
        if folder is None and not has_clean(self.data, cifar):
            clean = f"{cifar.folder}/{cifar.test} or {cifar.archive}"
            expected = f"expected {cifar.stored}/gaussian_noise.npy (and so on), {clean}"
            message = f"data folder {self.data} does not contain {cifar.title}: {expected}"
            raise UserError(message, code="no-such-data")
        if folder is not None:
            self._refuse_seed()
        return folder

    def train(self) -> LabelledImages:
        return read_train(self.data, self.data_set)

    def test(self) -> LabelledImages:
        return read_test(self.data, self.data_set)

    def make_domain(self, name: str, severity: int) -> Domain:
        """One corruption, from its array or made from the clean images."""
        if self.arrays is None:
            return super().make_domain(name, severity)
        array = self.arrays / f"{name}.npy"
        images = CorruptedArray(array, severity)
        labels = read_labels(array, len(images), len(self.classes))
        return Domain(name, severity, images, labels[: self.options.images])

    def origin(self) -> str:
        if self.arrays is None:
            return super().origin()
        return stored_origin(self.arrays, f"published arrays of {self.data_set.stored}")

    def fingerprint(self) -> str:
        """Fingerprint of the clean images, or of labels and the first image of each array."""
        if self.arrays is None:
            return super().fingerprint()
        domains = self.domains()
        first_images = [domain.source.read(0, 1) for domain in domains]
        return fingerprint([domains[0].image_labels(), *first_images])


@register
class Cifar10C(CifarC):
    """CIFAR-10 test images under corruptions."""

    name = "cifar10-c"
    title = "CIFAR-10, 15 corruptions (and 4 extra)"
    data_set = CIFAR10
    classes = CIFAR10.classes
    batch_size = 40
    needs = CIFAR10.needs


@register
class Cifar100C(CifarC):
    """CIFAR-100 test images under corruptions."""

    name = "cifar100-c"
    title = "CIFAR-100, 15 corruptions (and 4 extra)"
    data_set = CIFAR100
    classes = CIFAR100.classes
    batch_size = 50
    needs = CIFAR100.needs
