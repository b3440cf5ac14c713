"""Benchmarks of common corruptions: the same clean images under one corruption after the other."""

from __future__ import annotations

from functools import cached_property

from testdg.data.benchmarks.base import Benchmark, fingerprint
from testdg.data.corrupted import CorruptedImages, PixelCache
from testdg.data.corruptions import EXTRA, STANDARD_ORDER, FrostTextures
from testdg.data.stream import Domain, Samples
from testdg.errors import UserError, unknown


class CorruptionBenchmark(Benchmark):
    """Clean test images, corrupted on the fly."""

    has_severities = True

    @property
    def order(self) -> tuple[str, ...]:
        """Names of the corruptions, in the order of the stream."""
        chosen = tuple(STANDARD_ORDER if self.options.domains is None else self.options.domains)
        for name in chosen:
            check_corruption(name)
        if not chosen or len(set(chosen)) < len(chosen):
            raise UserError(f"domains must be named once each, at least one; got {', '.join(chosen) or 'none'}")
        return chosen

    @cached_property
    def clean(self) -> Samples:
        """The clean images of the stream."""
        return self.test().first(self.options.images)

    @cached_property
    def frost(self) -> FrostTextures | None:
        """Photographs of frost, where the data folder has them; None for procedural textures."""
        folder = None if self.data is None else self.data / "frost"
        return FrostTextures.from_folder(folder) if folder is not None and folder.is_dir() else None

    @cached_property
    def cache(self) -> PixelCache:
        """Room for corrupted images, shared by the domains."""
        return PixelCache()

    def make_domain(self, name: str, severity: int) -> Domain:
        """Make one corruption of the clean images."""
        check_corruption(name)
        seed = self.options.corruption_seed
        clean = self.clean.images
        images = CorruptedImages(clean, name, severity, seed=seed, frost=self.frost, cache=self.cache)
        return Domain(name, severity, images, self.clean.labels)

    def origin(self) -> str:
        """Where the images of the stream come from, in words."""
        frost = "procedural" if self.frost is None else self.frost.description
        return f"generated on the fly, seed {self.options.corruption_seed}, frost {frost}"

    def fingerprint(self) -> str:
        """Identify the clean images and labels."""
        return fingerprint([self.clean.images, self.clean.labels])


def check_corruption(name: str) -> None:
    """Refuse a corruption that does not exist."""
    if name not in (*STANDARD_ORDER, *EXTRA):
        raise unknown("corruption", name, (*STANDARD_ORDER, *EXTRA))
