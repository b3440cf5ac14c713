"""What every benchmark gives: domains in order, clean images, and a description for the record; benchmarks by name."""

import hashlib
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor

from testdg.data.corruptions import corrupt_uint8
from testdg.data.corruptions.parameters import check_severity
from testdg.data.stream import Domain, ImageSource, Samples, Stream
from testdg.errors import UserError, unknown
from testdg.registry import Registry


class Corrupt(Protocol):
    """What makes uint8 images, (N, 3, H, W), worse: `corrupt_uint8` or `weather`, with its seed and so on."""

    def __call__(self, images: Tensor, name: str, severity: int, /, *, indices: Sequence[int]) -> Tensor:
        """Images under a corruption; `indices` are their places in the data set."""


class PixelCache:
    """Images by key, up to a number of bytes; those that were not used for the longest time go first."""

    def __init__(self, limit: int = 1 << 30) -> None:
        self.limit, self.size = limit, 0
        self._kept: OrderedDict[Hashable, Tensor] = OrderedDict()

    def get(self, key: Hashable) -> Tensor | None:
        """An image that is kept, or None."""
        if key in self._kept:
            self._kept.move_to_end(key)
        return self._kept.get(key)

    def put(self, key: Hashable, image: Tensor) -> None:
        """Keep an image."""
        if key not in self._kept:
            self._kept[key] = image
            self.size += image.nbytes
        while self.size > self.limit:
            self.size -= self._kept.popitem(last=False)[1].nbytes


class CorruptedImages(ImageSource):
    """A domain made on the fly from clean images, uint8, (N, 3, H, W), by `corrupt`.

    `positions` are the images' places in their data set, which the noise depends on (0, 1, ... if left out);
    domains that share a `cache` share its room.
    """

    def __init__(
        self,
        clean: Tensor | ImageSource,
        name: str,
        severity: int,
        corrupt: Corrupt = corrupt_uint8,
        *,
        positions: Sequence[int] | None = None,
        cache: PixelCache | None = None,
    ) -> None:
        self.clean, self.name, self.severity, self.corrupt = clean, name, severity, corrupt
        self.positions = positions or range(len(clean))
        self._cache = PixelCache() if cache is None else cache

    def __len__(self) -> int:
        return len(self.clean)

    def take(self, indices: Sequence[int]) -> Tensor:
        """The images at some indices, in their order, corrupted."""
        keys = {index: (self.name, self.severity, index) for index in indices}
        images = {index: image for index, key in keys.items() if (image := self._cache.get(key)) is not None}
        missing = [index for index in keys if index not in images]
        if missing:
            positions = [self.positions[index] for index in missing]
            made = self.corrupt(self._clean(missing), self.name, self.severity, indices=positions)
            images.update(zip(missing, made, strict=True))
        for index in missing:
            self._cache.put(keys[index], images[index])
        return torch.stack([images[index] for index in indices])

    def _clean(self, indices: list[int]) -> Tensor:
        if isinstance(self.clean, Tensor):
            return self.clean[indices]
        if indices == list(range(indices[0], indices[0] + len(indices))):
            return self.clean.read(indices[0], indices[-1] + 1)  # files read the next ones ahead
        return self.clean.take(indices)


@dataclass(frozen=True)
class Options:
    """What a user can choose about a benchmark."""

    images: int | None = None
    """First images of each domain; None for all."""
    severity: int = 5
    domains: Sequence[str] | None = None
    """Names of the domains, in the order of the stream; None for the benchmark's own."""
    corruption_seed: int = 0
    subset: str | Path | None = None
    """Of image files: "all", "first:N" for the first N of each class, or a list file, one <class>/<file> per line."""
    skip_unreadable: bool = False
    """Try every image file first, and leave out and count those that cannot be decoded."""
    workers: int | None = None
    """Processes that decode image files; None for one per core, at most 16."""

    def __post_init__(self) -> None:
        if self.images is not None and self.images < 1:
            raise UserError(f"images per domain must be at least 1; got {self.images}")
        if self.workers is not None and self.workers < 1:
            raise UserError(f"workers must be at least 1; got {self.workers}")
        check_severity(self.severity)

    def describe_files(self, middle: str = "") -> str:
        """Which image files are taken, in words, with what else there is to say of them."""
        skipped = "; unreadable files skipped" if self.skip_unreadable else ""
        return f"subset {Path(self.subset or 'all').name}{middle}{skipped}"


def check_once(what: str, values: Sequence[Any]) -> None:
    """Refuse a choice that is empty or names something twice."""
    if not values or len(set(values)) < len(values):
        raise UserError(f"{what} must be named once each, at least one; got {', '.join(map(str, values)) or 'none'}")


class Benchmark(ABC):
    """A data set under changing conditions."""

    name: ClassVar[str] = ""
    title: ClassVar[str] = ""
    task: ClassVar[str] = "classification"
    classes: tuple[str, ...] = ()
    """Names of the classes, in the order of a model's outputs; empty on the class where the data tell them."""
    palette: tuple[tuple[int, int, int], ...] = ()
    """Colours of the classes in pictures of label maps; empty where there are none."""
    own_domains: ClassVar[tuple[str, ...]] = ()
    """Names of the domains of a run that names none, in the order of the stream."""
    batch_size: ClassVar[int] = 40
    protocol: ClassVar[str] = "continual"
    """The protocol of a run that names none."""
    needs: ClassVar[str] = ""
    """What the data folder must hold; empty where no folder is needed."""
    embedded: ClassVar[bool] = False
    """True where the benchmark brings its images and its source model is trained on the spot."""

    extras: ClassVar[tuple[str, ...]] = ()
    """Of an embedded benchmark, what a data folder may add."""
    image_files: ClassVar[bool] = False
    """True where the images are files, so that `subset`, `skip_unreadable` and `workers` apply."""
    has_severities: ClassVar[bool] = False
    """True where the domains exist at severities 1 to 5."""
    paper: ClassVar[Mapping[str, Any]] = {}
    """How the paper prepares images: values of a model's `Preprocessing`; empty where the paper has no such data."""

    def __init__(self, data: Path | None = None, options: Options | None = None) -> None:
        if data is None and self.needs:
            raise UserError(f"{self.name} needs a data folder with {self.needs}: name it with --data")
        if data is not None and not data.is_dir():
            raise UserError(f"data folder {data} does not exist: expected a folder with {self.needs or 'images'}")
        self.data = data
        self.options = options or Options()
        self._refuse_without_effect()
        self._made: dict[tuple[str, int], Domain] = {}

    def adopt(self, side: int | None, classes: Sequence[str]) -> None:  # noqa: B027
        """Hear the size and the classes of the model, before any image is read."""

    def _refuse_without_effect(self) -> None:
        """Refuse what would be given for nothing."""
        own, usual = self.options, Options()
        if not self.image_files and (own.subset is not None or own.skip_unreadable):
            raise UserError(f"{self.name} is not made of image files: leave out subset and skip_unreadable")
        if not self.image_files and own.workers is not None:
            raise UserError(f"{self.name} is not made of image files: leave out --workers")
        if not self.has_severities and own.severity != usual.severity:
            raise UserError(f"{self.name} has no severities; got {own.severity}: leave out --severity")
        if self.data is not None and self.embedded and not any((self.data / name).is_dir() for name in self.extras):
            used = f" (of a data folder, {' and '.join(self.extras)}/ alone would be used)" if self.extras else ""
            raise UserError(f"{self.name} brings its own images: leave out --data{used}")

    def _refuse_seed(self, made: bool) -> None:
        """Refuse a seed of corruptions where none are made."""
        if not made and self.options.corruption_seed != Options().corruption_seed:
            raise UserError(f"the images of {self.name} are there and not made: leave out --corruption-seed")

    @property
    def order(self) -> tuple[str, ...]:
        """Names of the domains, in the order of the stream: those that the user named, or the benchmark's own."""
        chosen = tuple(self.own_domains if self.options.domains is None else self.options.domains)
        for name in chosen:
            self.check_domain(name)
        check_once("domains", chosen)
        return chosen

    def check_domain(self, name: str) -> None:  # noqa: B027
        """Refuse a domain that does not exist."""

    @abstractmethod
    def make_domain(self, name: str, severity: int) -> Domain:
        """Open or make one domain."""

    def domain(self, name: str, severity: int | None = None) -> Domain:
        """One domain by name, at a severity of 1 to 5 (the chosen one if left out); made once."""
        severity = self.options.severity if severity is None else check_severity(severity)
        self.check_domain(name)
        if (name, severity) not in self._made:
            self._made[name, severity] = self.make_domain(name, severity)
        return self._made[name, severity]

    @cached_property
    def cache(self) -> PixelCache:
        """Room for images that are made on the fly, shared by the domains."""
        return PixelCache()

    def domains(self) -> tuple[Domain, ...]:
        """The domains, in the order of the stream."""
        return tuple(self.domain(name) for name in self.order)

    @abstractmethod
    def train(self) -> Samples:
        """Clean images for training a source model."""

    @abstractmethod
    def test(self) -> Samples:
        """Clean images for testing a source model."""

    @abstractmethod
    def origin(self) -> str:
        """Where the images of the stream come from, in words."""

    @abstractmethod
    def fingerprint(self) -> str:
        """Twelve hexadecimal digits that identify the images."""

    def unreadable(self) -> list[str]:
        """Image files of the stream that could not be decoded and were left out (`skip_unreadable`)."""
        return []

    def stream(self, batch_size: int | None = None) -> Stream:
        """The domains cut into batches."""
        return Stream(self.domains(), self.batch_size if batch_size is None else batch_size)

    def describe(self) -> dict[str, Any]:
        """Everything that a number on this benchmark depends on."""
        domains = self.domains()
        sizes = [len(domain) for domain in domains]
        return {
            "benchmark": self.name,
            "data": self.origin(),
            "data_fingerprint": self.fingerprint(),
            "domains": [domain.name for domain in domains],
            "severity": self.options.severity,
            "images_per_domain": sizes[0] if len(set(sizes)) == 1 else sizes,
        }


def letters(names: Sequence[str]) -> Tensor:
    """Names as numbers, for a fingerprint."""
    return torch.frombuffer(bytearray("\n".join(names).encode()), dtype=torch.uint8)


def fingerprint(tensors: Sequence[Tensor]) -> str:
    """Twelve hexadecimal digits that identify the values of tensors."""
    digest = hashlib.blake2b(digest_size=6)
    for tensor in tensors:
        digest.update(str(tuple(tensor.shape)).encode())
        digest.update(tensor.contiguous().numpy().tobytes())
    return digest.hexdigest()


_BENCHMARKS: Registry[type[Benchmark]] = Registry("benchmark", "testdg.data.benchmarks")
register = _BENCHMARKS.add
"""Make a benchmark known under its `name` (a class decorator)."""
benchmarks = _BENCHMARKS.all
"""Every benchmark, by name."""
find_benchmark = _BENCHMARKS.find
"""The benchmark of a name, or a sentence that names those that there are."""


def load_benchmark(name: str, data: str | Path | None = None, **options: Any) -> Benchmark:
    """Make a benchmark ready.

    Args:
        name: The name of a benchmark; `testdg benchmarks` lists them.
        data: Its data folder, where it needs one.
        **options: Those of `Options`: images of each domain, severity, domains, ...

    Examples:
        >>> import testdg
        >>> benchmark = testdg.load_benchmark("digits-c", images=100, domains=["fog", "frost"])
        >>> [tuple(batch.images.shape) for batch in benchmark.stream(batch_size=100)]
        [(100, 3, 32, 32), (100, 3, 32, 32)]
    """
    benchmark_class = find_benchmark(name)
    known = {field.name for field in fields(Options)}
    for option in options:
        if option not in known:
            raise unknown("benchmark option", option, known)
    return benchmark_class(None if data is None else Path(data), Options(**options))
