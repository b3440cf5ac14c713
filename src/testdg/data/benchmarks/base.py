"""What every benchmark gives: domains in order, clean images, and a description for the protocol."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from torch import Tensor

from testdg.data.stream import Domain, Samples, Stream
from testdg.errors import UserError


@dataclass(frozen=True)
class Options:
    """What a user can choose about a benchmark."""

    images: int | None = None
    """First images of each domain; None for all."""
    severity: int = 5
    domains: Sequence[str] | None = None
    """Names of the domains, in the order of the stream; None for the benchmark's own."""
    corruption_seed: int = 0

    def __post_init__(self) -> None:
        if self.images is not None and self.images < 1:
            raise UserError(f"images per domain must be at least 1; got {self.images}")
        if not 1 <= self.severity <= 5:
            raise UserError(f"severity must be 1 to 5; got {self.severity}")


class Benchmark(ABC):
    """A data set under changing conditions."""

    name: ClassVar[str] = ""
    title: ClassVar[str] = ""
    task: ClassVar[str] = "classification"
    classes: ClassVar[tuple[str, ...]] = ()
    batch_size: ClassVar[int] = 40
    needs: ClassVar[str] = ""
    """What the data folder must hold; empty where no folder is needed."""
    embedded: ClassVar[bool] = False
    """True where the benchmark brings its images and its source model is trained on the spot."""

    def __init__(self, data: Path | None = None, options: Options | None = None) -> None:
        if data is None and self.needs:
            raise UserError(f"{self.name} needs a data folder with {self.needs}: name it with --data")
        if data is not None and not data.is_dir():
            raise UserError(f"data folder {data} does not exist: expected a folder with {self.needs or 'images'}")
        self.data = data
        self.options = options or Options()

    @abstractmethod
    def domains(self) -> tuple[Domain, ...]:
        """The domains, in the order of the stream."""

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


def fingerprint(tensors: Sequence[Tensor]) -> str:
    """Twelve hexadecimal digits that identify the values of tensors."""
    digest = hashlib.blake2b(digest_size=6)
    for tensor in tensors:
        digest.update(str(tuple(tensor.shape)).encode())
        digest.update(tensor.contiguous().numpy().tobytes())
    return digest.hexdigest()
