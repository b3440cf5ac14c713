"""cifar10-c: the published arrays of CIFAR-10-C, or the same corruptions made from the clean CIFAR-10 test images."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path

from testdg.data.benchmarks.base import fingerprint
from testdg.data.benchmarks.corruption import CorruptionBenchmark
from testdg.data.benchmarks.registry import register
from testdg.data.cifar import CLASSES, CLEAN_FOLDER, CorruptedArray, find_clean, read_labels, read_test, read_train
from testdg.data.corruptions import EXTRA, STANDARD_ORDER
from testdg.data.stream import Domain, Samples
from testdg.errors import UserError

ARRAY_FOLDER = "CIFAR-10-C"


@register
class Cifar10C(CorruptionBenchmark):
    """CIFAR-10 test images under corruptions."""

    name = "cifar10-c"
    title = "CIFAR-10, 15 corruptions (and 4 extra)"
    classes = CLASSES
    batch_size = 40
    needs = f"{ARRAY_FOLDER}/<corruption>.npy or {CLEAN_FOLDER}/"
    data: Path

    @cached_property
    def arrays(self) -> Path | None:
        """The folder of published arrays; None where there is none."""
        names = ["labels", *STANDARD_ORDER, *EXTRA]
        folders = (self.data / ARRAY_FOLDER, self.data)
        found = next((f for f in folders if any((f / f"{name}.npy").exists() for name in names)), None)
        if found is None and not (find_clean(self.data) / "test_batch").exists():
            expected = f"expected {ARRAY_FOLDER}/gaussian_noise.npy (and so on) or {CLEAN_FOLDER}/test_batch"
            raise UserError(f"data folder {self.data} holds no CIFAR-10: {expected}")
        return found

    def train(self) -> Samples:
        """The clean training images that are there."""
        return read_train(self.data)

    def test(self) -> Samples:
        """The clean test images."""
        return read_test(self.data)

    def make_domain(self, name: str) -> Domain:
        """One corruption: from its array where there are arrays, else made from the clean images."""
        if self.arrays is None:
            return super().make_domain(name)
        images = CorruptedArray(self.arrays / f"{name}.npy", self.options.severity)
        labels = read_labels(self.arrays / "labels.npy", len(images))
        return Domain(name, self.options.severity, images, labels[: self.options.images])

    def origin(self) -> str:
        """Where the images of the stream come from, in words."""
        return super().origin() if self.arrays is None else f"published arrays of {ARRAY_FOLDER}"

    def fingerprint(self) -> str:
        """Identify the images: the clean ones, or labels and the first image of each array."""
        if self.arrays is None:
            return super().fingerprint()
        domains = self.domains()
        return fingerprint([domains[0].labels, *(domain.source.read(0, 1) for domain in domains)])
