"""Benchmarks by name."""

from dataclasses import fields
from pathlib import Path
from typing import Any

from testdg.data.benchmarks.base import Benchmark, Options
from testdg.errors import unknown
from testdg.registry import Registry

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
