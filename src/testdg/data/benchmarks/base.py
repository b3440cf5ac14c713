"""Benchmarks: domains in order, clean images, and the description of the data that every record contains."""

import hashlib
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor

from testdg.data.corruptions import corrupt_uint8
from testdg.data.corruptions.parameters import check_severity
from testdg.data.stream import Domain, ImageSource, LabelledImages, Stream
from testdg.data.weather import CONDITIONS
from testdg.errors import UserError, unknown
from testdg.registry import Registry


class Corrupt(Protocol):
    """`corrupt_uint8` or `weather` with its seed and other settings: uint8 images (N, 3, H, W) in and out."""

    def __call__(self, images: Tensor, name: str, severity: int, /, *, indices: Sequence[int]) -> Tensor:
        """Corrupt images; `indices` are their positions in the data set."""


class PixelCache:
    """Images by key, up to a number of bytes; the least recently used ones are dropped first."""

    def __init__(self, limit: int = 1 << 30) -> None:
        self.limit, self.size = limit, 0
        self._images: OrderedDict[Hashable, Tensor] = OrderedDict()

    def get(self, key: Hashable) -> Tensor | None:
        if key in self._images:
            self._images.move_to_end(key)
        return self._images.get(key)

    def put(self, key: Hashable, image: Tensor) -> None:
        if key not in self._images:
            self._images[key] = image
            self.size += image.nbytes
        while self.size > self.limit:
            self.size -= self._images.popitem(last=False)[1].nbytes


class CorruptedImages(ImageSource):
    """Clean images that are corrupted when they are read, and then cached.

    `positions` are their positions in the data set, which the noise depends on (default: 0, 1, ...). Domains may share
    a `cache` and its limit.
    """

    def __init__(
        self,
        clean: ImageSource,
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
        keys = {index: (self.name, self.severity, index) for index in indices}
        found = {index: self._cache.get(key) for index, key in keys.items()}
        images = {index: image for index, image in found.items() if image is not None}
        missing = [index for index in keys if index not in images]
        if missing:
            # Sources read ahead after a range.
            is_range = missing == list(range(missing[0], missing[0] + len(missing)))
            clean = self.clean.read(missing[0], missing[-1] + 1) if is_range else self.clean.take(missing)
            positions = [self.positions[index] for index in missing]
            corrupted = self.corrupt(clean, self.name, self.severity, indices=positions)
            for index, image in zip(missing, corrupted, strict=True):
                images[index] = image
                self._cache.put(keys[index], image)
        return torch.stack([images[index] for index in indices])


@dataclass(frozen=True)
class Options:
    """What a user can choose about a benchmark."""

    images: int | None = None
    """Number of images of each domain, from the first; None for all."""
    severity: int = 5
    domains: Sequence[str] | None = None
    """Names of the domains, in the order of the stream; None for the benchmark's own."""
    corruption_seed: int = 0
    subset: str | Path | None = None
    """Of image files: "all", "first:N" for the first N of each class, or a list file, one <class>/<file> per line."""
    skip_unreadable: bool = False
    """Try to read every image file first, and leave out and count those that cannot be decoded."""
    workers: int | None = None
    """Threads that decode image files; None for one per core, at most 16."""

    def __post_init__(self) -> None:
        if self.images is not None and self.images < 1:
            raise UserError(f"images per domain must be at least 1; got {self.images}", code="wrong-images")
        if self.workers is not None and self.workers < 1:
            raise UserError(f"workers must be at least 1; got {self.workers}", code="wrong-workers")
        check_severity(self.severity)

    def describe_files(self, middle: str = "") -> str:
        """Which image files are used, in words, with further words in the middle."""
        skipped = "; unreadable files skipped" if self.skip_unreadable else ""
        return f"subset {Path(self.subset or 'all').name}{middle}{skipped}"


def check_once(what: str, values: Sequence[Any]) -> None:
    """Refuse an empty choice and duplicates."""
    if not values or len(set(values)) < len(values):
        names = ", ".join(map(str, values)) or "none"
        raise UserError(f"{what} must be named once each, at least one; got {names}", code=f"wrong-{what}")


class Benchmark(ABC):
    """A data set under changing conditions."""

    name: ClassVar[str] = ""
    title: ClassVar[str] = ""
    task: ClassVar[str] = "classification"
    classes: tuple[str, ...] = ()
    """Names of the classes, in the order of a model's outputs; empty on the class if they depend on the data."""
    palette: tuple[tuple[int, int, int], ...] = ()
    """Colours of the classes in label maps; empty if there are none."""
    own_domains: ClassVar[tuple[str, ...]] = ()
    """Default domains, in the order of the stream."""
    known_domains: ClassVar[tuple[str, ...]] = ()
    """All domains that exist; empty if any name may be a domain."""
    domain_kind: ClassVar[str] = "domain"
    """The word for a domain in messages."""
    batch_size: ClassVar[int] = 40
    protocol: ClassVar[str] = "continual"
    """Default protocol."""
    needs: ClassVar[str] = ""
    """Contents of the data folder; empty if no folder is needed."""
    embedded: ClassVar[bool] = False
    """True if the benchmark contains its images and trains its source model itself."""

    extras: ClassVar[tuple[str, ...]] = ()
    """Optional contents of the data folder of an embedded benchmark."""
    image_files: ClassVar[bool] = False
    """True if the images are files, so that `subset`, `skip_unreadable` and `workers` apply."""
    has_severities: ClassVar[bool] = False
    """True if the domains exist at severities 1 to 5."""
    paper: ClassVar[Mapping[str, Any]] = {}
    """How the paper prepares images: values of `Preprocessing`; empty if the paper does not use the data."""

    def __init__(self, data: Path | None = None, options: Options | None = None) -> None:
        if data is None and self.needs:
            raise UserError(f"{self.name} needs a data folder with {self.needs}: name it with --data", code="no-data")
        if data is not None and not data.is_dir():
            expected = self.needs or "images"
            message = f"data folder {data} does not exist: expected a folder with {expected}"
            raise UserError(message, code="no-such-folder")
        own = options or Options()
        self.data, self.options = data, own
        self.cache = PixelCache()
        """Images that are made on the fly, of all domains."""
        self._domains: dict[tuple[str, int], Domain] = {}
        if not self.image_files and (own.subset is not None or own.skip_unreadable):
            self._refuse("is not made of image files: leave out subset and skip_unreadable")
        if not self.image_files and own.workers is not None:
            self._refuse("is not made of image files: leave out --workers")
        if not self.has_severities and own.severity != Options().severity:
            self._refuse(f"has no severities; got {own.severity}: leave out --severity")
        if data is not None and self.embedded and not any((data / name).is_dir() for name in self.extras):
            used = f" (only {' and '.join(self.extras)}/ of a data folder would be used)" if self.extras else ""
            self._refuse(f"contains its own images: leave out --data{used}")

    def _refuse(self, problem: str) -> None:
        """Refuse an option that would have no effect."""
        raise UserError(f"{self.name} {problem}", code="option-conflict")

    def _refuse_seed(self) -> None:
        """Refuse a seed of corruptions, which has no effect on stored images."""
        if self.options.corruption_seed != Options().corruption_seed:
            self._refuse("reads stored images: leave out --corruption-seed")

    def adopt(self, side: int | None, classes: Sequence[str]) -> None:  # noqa: B027
        """Adapt to the input size and the classes of the model; called before any image is read."""

    @property
    def order(self) -> tuple[str, ...]:
        """Names of the domains, in the order of the stream: the user's choice, or the default."""
        chosen = tuple(self.own_domains if self.options.domains is None else self.options.domains)
        for name in chosen:
            self.check_domain(name)
        check_once("domains", chosen)
        return chosen

    def check_domain(self, name: str) -> None:
        if self.known_domains and name not in self.known_domains:
            raise unknown(self.domain_kind, name, self.known_domains)

    @abstractmethod
    def make_domain(self, name: str, severity: int) -> Domain:
        """Open or make one domain."""

    def domain(self, name: str, severity: int | None = None) -> Domain:
        """One domain at a severity of 1 to 5 (default: that of the options); cached."""
        severity = self.options.severity if severity is None else check_severity(severity)
        self.check_domain(name)
        if (name, severity) not in self._domains:
            self._domains[name, severity] = self.make_domain(name, severity)
        return self._domains[name, severity]

    def domains(self) -> tuple[Domain, ...]:
        """The domains, in the order of the stream."""
        return tuple(self.domain(name) for name in self.order)

    @abstractmethod
    def train(self) -> LabelledImages:
        """Clean images for training a source model."""

    @abstractmethod
    def test(self) -> LabelledImages:
        """Clean images for testing a source model."""

    @abstractmethod
    def origin(self) -> str:
        """The origin of the images, in words."""

    @abstractmethod
    def fingerprint(self) -> str:
        """Twelve hexadecimal digits that identify the images."""

    def unreadable(self) -> list[str]:
        """Image files of the stream that could not be decoded and were left out (`skip_unreadable`)."""
        return []

    def stream(self, batch_size: int | None = None) -> Stream:
        """The domains, cut into batches."""
        return Stream(self.domains(), self.batch_size if batch_size is None else batch_size)

    def describe(self) -> dict[str, Any]:
        """Everything about the data that a number on this benchmark depends on."""
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


class WeatherBenchmark(Benchmark):
    """Pictures of streets with label maps, in fog, at night, in rain and in snow."""

    task = "segmentation"
    batch_size = 1
    protocol = "cyclic"
    own_domains = known_domains = CONDITIONS
    domain_kind = "condition"


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
"""Register a benchmark under its `name` (a class decorator)."""
benchmarks = _BENCHMARKS.all
"""All benchmarks by name."""
find_benchmark = _BENCHMARKS.find
"""The benchmark of a name."""


def load_benchmark(name: str, data: str | Path | None = None, **options: Any) -> Benchmark:
    """Open a benchmark.

    Args:
        name: The name of a benchmark; `testdg benchmarks` lists them.
        data: Its data folder, if it needs one.
        **options: Fields of `Options`: images of each domain, severity, domains, ...

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
