"""imagenet-c: the published files of ImageNet-C, or the corruptions made from the clean validation images."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from types import MappingProxyType

import torch

from testdg.data.benchmarks.base import Options, fingerprint
from testdg.data.benchmarks.corruption import CorruptionBenchmark, check_corruption
from testdg.data.benchmarks.registry import register
from testdg.data.corrupted import CorruptedImages
from testdg.data.decoder import IMAGE_BYTES, Decoder
from testdg.data.image_files import ImageFiles, choose_images, list_images
from testdg.data.imagenet import STORED_FOLDER, find_class_list, find_classes, find_stored, severity_folder
from testdg.data.manifest import stored_origin
from testdg.data.stream import Domain, ImageSource, Samples
from testdg.errors import UserError

_MOST_IMAGES = (4 << 30) // IMAGE_BYTES  # that are held in memory


@register
class ImageNetC(CorruptionBenchmark):
    """ImageNet validation images under corruptions; any folder of classes in the same layout will do."""

    name = "imagenet-c"
    title = "ImageNet, 15 corruptions (and 4 extra)"
    batch_size = 50
    needs = f"{STORED_FOLDER}/<corruption>/<severity>/<class>/ or val/<class>/"
    image_files = True
    paper = MappingProxyType(
        {"size": 256, "crop": (224, 224), "resample": "bilinear", "mean": (0.0,) * 3, "std": (1.0,) * 3}
    )
    data: Path

    def __init__(self, data: Path | None = None, options: Options | None = None) -> None:
        super().__init__(data, options)
        self.stored = find_stored(self.data)
        if self.stored is None and not (self.data / "val").is_dir():
            expected = f"expected {STORED_FOLDER}/gaussian_noise/5/<class>/ (and so on) or val/<class>/"
            raise UserError(f"data folder {self.data} holds no ImageNet: {expected}")
        self.classes = find_classes(self.data, self.stored)
        self._skipped: dict[Path, list[str]] = {}

    @cached_property
    def decoder(self) -> Decoder:
        """The processes that decode files."""
        return Decoder(self.options.workers)

    @cached_property
    def clean_files(self) -> ImageFiles:
        """The clean images of the stream, where it is made on the fly."""
        return self._readable(self._open(self.data / "val").first(self.options.images))

    def make_domain(self, name: str, severity: int) -> Domain:
        """One corruption: from its files where there are any, else made from the clean images."""
        check_corruption(name)
        if self.stored is None:
            return Domain(name, severity, self._corrupt(name, severity), self._labels(self.clean_files))
        files = self._open(severity_folder(self.stored, name, severity)).first(self.options.images)
        files = self._readable(files)
        return Domain(name, severity, files, self._labels(files))

    def _corrupt(self, name: str, severity: int) -> ImageSource:
        return CorruptedImages(
            self.clean_files,
            name,
            severity,
            seed=self.options.corruption_seed,
            frost=self.frost,
            parameters="imagenet",
            positions=self._positions,
            cache=self.cache,
        )

    @cached_property
    def _positions(self) -> list[int]:
        """Places of the clean images among all of `val`, so that noise does not depend on the subset."""
        places = {name: place for place, name in enumerate(list_images(self.data / "val"))}
        return [places[name] for name in self.clean_files.names]

    def _open(self, folder: Path) -> ImageFiles:
        """Those images of a folder that the subset names; a list file names no training images."""
        if not folder.is_dir():
            raise UserError(f"{folder} is missing: expected <class>/<file>.JPEG in it")
        subset = str(self.options.subset or "all")
        listed = subset != "all" and not subset.startswith("first:")
        names = choose_images(folder, list_images(folder), "all" if listed and folder.name == "train" else subset)
        return ImageFiles(folder, names, self.decoder)

    def _readable(self, files: ImageFiles) -> ImageFiles:
        """Without the files that cannot be decoded, where they are to be skipped."""
        if not self.options.skip_unreadable:
            return files
        self._skipped[files.folder] = files.unreadable()
        return files.without(self._skipped[files.folder])

    def _labels(self, files: ImageFiles) -> torch.Tensor:
        numbers = {name: number for number, name in enumerate(self.classes)}
        labels = [numbers.get(name.split("/")[0], -1) for name in files.names]
        if -1 in labels:
            stranger = files.names[labels.index(-1)]
            raise UserError(f"{files.folder / stranger}: its class is not listed in {self._class_source()}: add it")
        return torch.tensor(labels)

    def _class_source(self) -> str:
        found = find_class_list(self.data, self.stored)
        return "the folders" if found is None else found.name

    def train(self) -> Samples:
        """The clean training images: all, or the first N of each class with the subset "first:N"."""
        return self._load(self._open(self.data / "train"))

    def test(self) -> Samples:
        """The clean validation images of the subset."""
        return self._load(self._open(self.data / "val"))

    def _load(self, files: ImageFiles) -> Samples:
        if len(files) > _MOST_IMAGES:
            told = f"{files.folder} has {len(files)} images, more than the {_MOST_IMAGES} that are held in memory"
            raise UserError(f"{told}: choose some with the subset 'first:N'")
        files = files.without(files.unreadable()) if self.options.skip_unreadable else files
        return Samples(files.read(0, len(files)), self._labels(files))

    def origin(self) -> str:
        """Where the images of the stream come from, in words."""
        text = super().origin() if self.stored is None else stored_origin(self.stored, f"published {STORED_FOLDER}")
        subset = Path(self.options.subset or "all").name
        skipped = "; unreadable files skipped" if self.options.skip_unreadable else ""
        return f"{text}; subset {subset}; {len(self.classes)} classes by {self._class_source()}{skipped}"

    def fingerprint(self) -> str:
        """Identify the images: names and labels of all, and the first one of each domain (or of the clean images)."""
        files = [self.clean_files] if self.stored is None else [domain.source for domain in self.domains()]
        parts = [part for source in files if isinstance(source, ImageFiles) for part in self._identify(source)]
        return fingerprint(parts)

    def _identify(self, files: ImageFiles) -> list[torch.Tensor]:
        names = torch.frombuffer(bytearray("\n".join(files.names).encode()), dtype=torch.uint8)
        return [names, self._labels(files), files.take([0])]

    def unreadable(self) -> list[str]:
        """Files that could not be decoded and were left out of the domains that were made so far."""
        return [str(folder.relative_to(self.data) / name) for folder, names in self._skipped.items() for name in names]
