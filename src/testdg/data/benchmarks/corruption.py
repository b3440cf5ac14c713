"""Bases of the benchmarks of common corruptions: the same clean images, in memory or in files, under each of them."""

from functools import cached_property, partial
from pathlib import Path
from typing import ClassVar

import torch

from testdg.data.benchmarks.base import Benchmark, Corrupt, CorruptedImages, Options, benchmarks, fingerprint, letters
from testdg.data.cifar import Cifar
from testdg.data.corruptions import CIFAR, EXTRA, STANDARD_ORDER, FrostTextures, corrupt_uint8
from testdg.data.image_files import Decoder, ImageFiles, choose_images, list_images, spread
from testdg.data.picture_sets import Pictures, PictureSet, stored_origin
from testdg.data.stream import Domain, LabelledImages
from testdg.errors import UserError

_MOST_BYTES = 4 << 30  # of images in memory

CorruptedSet = Cifar | PictureSet


class CorruptionBenchmark(Benchmark):
    """Clean test images, corrupted on the fly."""

    has_severities = True
    own_domains = STANDARD_ORDER
    known_domains = (*STANDARD_ORDER, *EXTRA)
    domain_kind = "corruption"
    data_set: ClassVar[CorruptedSet | None] = None
    """Contents of the data folder and how they are corrupted; None if the images are embedded."""

    @cached_property
    def clean(self) -> LabelledImages:
        return self.test().first(self.options.images)

    @cached_property
    def frost(self) -> FrostTextures | None:
        """Photographs of frost, if the data folder has them; None for procedural textures."""
        folder = None if self.data is None else self.data / "frost"
        return FrostTextures.from_folder(folder) if folder is not None and folder.is_dir() else None

    @property
    def corrupt(self) -> Corrupt:
        parameters = CIFAR if self.data_set is None else self.data_set.parameters
        return partial(corrupt_uint8, seed=self.options.corruption_seed, parameters=parameters, frost=self.frost)

    def make_domain(self, name: str, severity: int) -> Domain:
        images = CorruptedImages(self.clean, name, severity, self.corrupt, cache=self.cache)
        return Domain(name, severity, images, self.clean.labels)

    def origin(self) -> str:
        frost = "procedural" if self.frost is None else self.frost.description
        return f"generated on the fly, seed {self.options.corruption_seed}, frost {frost}"

    def fingerprint(self) -> str:
        return fingerprint([self.clean.images, self.clean.labels])


class PictureBenchmark(CorruptionBenchmark):
    """Test pictures under corruptions; a subclass only declares its set."""

    data_set: ClassVar[PictureSet]
    image_files = True
    data: Path

    def __init__(self, data: Path | None = None, options: Options | None = None) -> None:
        super().__init__(data, options)
        self.stored = self.data_set.find_stored(self.data)
        clean = self.data_set.split_folder(self.data, self.data_set.test)
        if self.stored is None and not clean.is_dir() and not self.data_set.is_plain(self.data):
            example = "gaussian_noise/5/<class>/ (and so on)"
            expected = self.needs.replace("<corruption>/<severity>/<class>/", example)
            message = f"data folder {self.data} does not contain {self.data_set.title}: expected {expected}"
            raise UserError(message, code="no-such-data")
        if self.stored is not None:
            self._refuse_seed()
        self.classes = self.data_set.find_classes(self.data)
        self._skipped: dict[Path, list[str]] = {}

    @cached_property
    def frost(self) -> FrostTextures | None:
        """Photographs of frost, if there are some; None for procedural textures."""
        folder = self.data_set.frost_folder(self.data)
        return FrostTextures.from_folder(folder) if folder.is_dir() else None

    @cached_property
    def decoder(self) -> Decoder:
        return Decoder(self.options.workers, self.data_set.crop)

    @cached_property
    def test_pictures(self) -> Pictures:
        return self.data_set.list_test(self.data)

    @cached_property
    def clean_files(self) -> ImageFiles:
        """The clean images of a stream that is made on the fly."""
        return self._streamed(self.test_pictures)

    @property
    def _listed(self) -> bool:
        """Whether a file lists the images and their order."""
        subset = str(self.options.subset or "all")
        return subset != "all" and not subset.startswith("first:")

    def _ordered(self, files: ImageFiles) -> ImageFiles:
        """The requested number of files, spread over the classes unless a file lists them."""
        count = self.options.images
        return files.chosen(files.names[:count] if self._listed else spread(files.names, count))

    def make_domain(self, name: str, severity: int) -> Domain:
        """One corruption, from its files or made from the clean images."""
        if self.stored is None:
            files, positions = self.clean_files, self._positions
            made = CorruptedImages(files, name, severity, self.corrupt, positions=positions, cache=self.cache)
            return Domain(name, severity, made, self._labels(files))
        folder = self.data_set.severity_folder(self.stored, name, severity)
        files = self._streamed(Pictures(folder, list_images(folder)))
        return Domain(name, severity, files, self._labels(files))

    @cached_property
    def _positions(self) -> list[int]:
        """Positions of the clean images among all test pictures, so that noise does not depend on the subset."""
        places = {name: place for place, name in enumerate(self.test_pictures.paths)}
        return [places[name] for name in self.clean_files.names]

    def _choose(self, pictures: Pictures, subset: str | Path | None = None) -> ImageFiles:
        """The pictures of a subset (default: that of the options)."""
        files = ImageFiles(*pictures, self.decoder)
        return files.chosen(choose_images(files.folder, files.names, subset or self.options.subset))

    def _streamed(self, pictures: Pictures) -> ImageFiles:
        """Image files of the stream, in its order, without unreadable ones if `skip_unreadable`."""
        files = self._ordered(self._choose(pictures))
        if not self.options.skip_unreadable:
            return files
        files, damaged = files.readable()
        self._skipped[files.folder] = [str(path.relative_to(self.data)) for path in damaged]
        return files

    def _labels(self, files: ImageFiles) -> torch.Tensor:
        numbers = {name: number for number, name in enumerate(self.classes)}
        labels = [numbers.get(name.split("/")[0], -1) for name in files.names]
        if -1 in labels:
            message = f"{files.files[labels.index(-1)]}: its class is not listed in {self._class_source()}: add it"
            raise UserError(message, code="unknown-class")
        return torch.tensor(labels)

    def _class_source(self) -> str:
        listed = self.data_set.find_class_list(self.data)
        return "the folders" if listed is None else listed.name

    def train(self) -> LabelledImages:
        """All clean training images, or the first N of each class; list files only apply to test images."""
        subset = str(self.options.subset or "all")
        listed = self.data_set.list_split(self.data, self.data_set.train)
        return self._load(self._choose(listed, subset if subset.startswith("first:") else "all"))

    def test(self) -> LabelledImages:
        return self._load(self._choose(self.test_pictures))

    def _load(self, files: ImageFiles) -> LabelledImages:
        most = _MOST_BYTES // (3 * self.decoder.crop.side**2)
        if len(files) > most:
            counted = f"{files.folder} has {len(files)} images, more than the {most} that fit in memory"
            raise UserError(f"{counted}: choose some with the subset 'first:N'", code="too-many-images")
        if self.options.skip_unreadable:
            files, _ = files.readable()
        return LabelledImages(files.take(range(len(files))), self._labels(files))

    def origin(self) -> str:
        published = f"published {self.data_set.stored}"
        text = super().origin() if self.stored is None else stored_origin(self.stored, published)
        counted = f"; {len(self.classes)} classes by {self._class_source()}"
        return f"{text}; {self.options.describe_files(counted)}{self._describe_order()}"

    def _describe_order(self) -> str:
        """The order of the images in words, if it is not that of the files."""
        if self.options.images is None:
            return ""
        how = "the first of the list" if self._listed else "spread over the classes, one of each in turn"
        return f"; {self.options.images} images, {how}"

    def fingerprint(self) -> str:
        """Fingerprint of all names and labels, and of the first image of each domain (or of the clean images)."""
        if self.stored is None:
            return fingerprint(self._identity(self.clean_files))
        parts: list[torch.Tensor] = []
        for domain in self.domains():
            assert isinstance(domain.source, ImageFiles)
            parts += self._identity(domain.source)
        return fingerprint(parts)

    def _identity(self, files: ImageFiles) -> list[torch.Tensor]:
        return [letters(files.names), self._labels(files), files.take([0])]

    def unreadable(self) -> list[str]:
        """Unreadable files that were left out of the domains that were opened so far."""
        return [path for paths in self._skipped.values() for path in paths]


def corrupted_sets() -> dict[str, tuple[type[CorruptionBenchmark], CorruptedSet]]:
    """The corruption benchmarks that read a data folder, by name, with their data set."""
    kinds = [kind for kind in benchmarks().values() if issubclass(kind, CorruptionBenchmark)]
    return {kind.name: (kind, kind.data_set) for kind in kinds if kind.data_set is not None}
