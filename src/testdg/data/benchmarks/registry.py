"""Benchmarks by name."""

from dataclasses import fields
from pathlib import Path
from typing import Any, TypeVar

from testdg.data.benchmarks.base import Benchmark, Options
from testdg.errors import unknown
from testdg.registry import Registry

_BENCHMARKS: Registry[type[Benchmark]] = Registry("benchmark", "testdg.data.benchmarks")
T = TypeVar("T", bound="type[Benchmark]")


def register(kind: T) -> T:
    """Make a benchmark known under its `name` (a class decorator)."""
    _BENCHMARKS.add(kind)
    return kind


def benchmarks() -> dict[str, type[Benchmark]]:
    """All benchmarks, by name, in alphabetical order."""
    return _BENCHMARKS.all()


def find_benchmark(name: str) -> type[Benchmark]:
    """Look a benchmark up by its name."""
    return _BENCHMARKS.find(name)


def load_benchmark(name: str, data: str | Path | None = None, **options: Any) -> Benchmark:
    """Make a benchmark ready: its data folder where it needs one, and the options of `Options`."""
    benchmark_class = find_benchmark(name)
    known = {field.name for field in fields(Options)}
    for option in options:
        if option not in known:
            raise unknown("benchmark option", option, known)
    return benchmark_class(None if data is None else Path(data), Options(**options))
