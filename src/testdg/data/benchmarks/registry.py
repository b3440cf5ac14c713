"""Benchmarks by name. A benchmark registers itself where it is defined; every module of this package is looked at."""

from __future__ import annotations

import importlib
import pkgutil
from dataclasses import fields
from pathlib import Path
from typing import Any, TypeVar

from testdg.data.benchmarks.base import Benchmark, Options
from testdg.errors import UserError, unknown

_BENCHMARKS: dict[str, type[Benchmark]] = {}
T = TypeVar("T", bound="type[Benchmark]")


def register(kind: T) -> T:
    """Make a benchmark known under its `name` (a class decorator)."""
    if not kind.name:
        raise UserError(f"{kind.__qualname__} needs a name")
    if _BENCHMARKS.get(kind.name, kind).__qualname__ != kind.__qualname__:
        raise UserError(f"a benchmark named {kind.name!r} exists already: {_BENCHMARKS[kind.name].__qualname__}")
    _BENCHMARKS[kind.name] = kind
    return kind


def benchmarks() -> dict[str, type[Benchmark]]:
    """All benchmarks, by name, in alphabetical order."""
    import testdg.data.benchmarks as package

    for module in pkgutil.iter_modules(package.__path__, package.__name__ + "."):
        importlib.import_module(module.name)
    return dict(sorted(_BENCHMARKS.items()))


def find_benchmark(name: str) -> type[Benchmark]:
    """Look a benchmark up by its name."""
    known = benchmarks()
    if name not in known:
        raise unknown("benchmark", name, known)
    return known[name]


def load_benchmark(name: str, data: str | Path | None = None, **options: Any) -> Benchmark:
    """Make a benchmark ready: its data folder where it needs one, and the options of `Options`."""
    kind = find_benchmark(name)
    known = {field.name for field in fields(Options)}
    for option in options:
        if option not in known:
            raise unknown("benchmark option", option, known)
    return kind(None if data is None else Path(data), Options(**options))
