"""Benchmarks of common corruptions: the same clean images under one corruption after the other."""

from functools import cached_property, partial
from typing import ClassVar

from testdg.data.benchmarks.base import Benchmark, fingerprint
from testdg.data.benchmarks.registry import benchmarks
from testdg.data.cifar import Cifar
from testdg.data.corrupted import Corrupt, CorruptedImages
from testdg.data.corruptions import CIFAR, STANDARD_ORDER, FrostTextures, corrupt_uint8
from testdg.data.corruptions.parameters import check_name
from testdg.data.picture_sets import PictureSet
from testdg.data.stream import Domain, Samples

CorruptedSet = Cifar | PictureSet


class CorruptionBenchmark(Benchmark):
    """Clean test images, corrupted on the fly."""

    has_severities = True
    data_set: ClassVar[CorruptedSet | None] = None
    """What the data folder holds, and how it is corrupted; None where the images are embedded."""

    @property
    def order(self) -> tuple[str, ...]:
        """Names of the corruptions, in the order of the stream."""
        return self.chosen_domains(STANDARD_ORDER, check_name)

    @cached_property
    def clean(self) -> Samples:
        """The clean images of the stream."""
        return self.test().first(self.options.images)

    @cached_property
    def frost(self) -> FrostTextures | None:
        """Photographs of frost, where the data folder has them; None for procedural textures."""
        folder = None if self.data is None else self.data / "frost"
        return FrostTextures.from_folder(folder) if folder is not None and folder.is_dir() else None

    @property
    def corrupt(self) -> Corrupt:
        """What corrupts the clean images."""
        parameters = CIFAR if self.data_set is None else self.data_set.parameters
        return partial(corrupt_uint8, seed=self.options.corruption_seed, parameters=parameters, frost=self.frost)

    def make_domain(self, name: str, severity: int) -> Domain:
        """Make one corruption of the clean images."""
        check_name(name)
        images = CorruptedImages(self.clean.images, name, severity, self.corrupt, cache=self.cache)
        return Domain(name, severity, images, self.clean.labels)

    def origin(self) -> str:
        """Where the images of the stream come from, in words."""
        frost = "procedural" if self.frost is None else self.frost.description
        return f"generated on the fly, seed {self.options.corruption_seed}, frost {frost}"

    def fingerprint(self) -> str:
        """Identify the clean images and labels."""
        return fingerprint([self.clean.images, self.clean.labels])


def corrupted_sets() -> dict[str, tuple[type[CorruptionBenchmark], CorruptedSet]]:
    """The corruption benchmarks whose images lie in files, by name, with what they declare."""
    kinds = [kind for kind in benchmarks().values() if issubclass(kind, CorruptionBenchmark)]
    return {kind.name: (kind, kind.data_set) for kind in kinds if kind.data_set is not None}
