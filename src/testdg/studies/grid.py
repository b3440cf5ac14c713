"""Grids and cells as values; `expansion.py` turns one into the others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from testdg.errors import UserError
from testdg.files import read_toml
from testdg.runs import Protocol

SOURCE = "source"
Pairs = tuple[tuple[str, Any], ...]


class Setup(NamedTuple):
    """A benchmark with its options, and a source model for it."""

    benchmark: str
    data: str | None
    options: Pairs
    model: str | None
    preprocessing: str


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One run: everything that `evaluation.run` needs to know, as a value that can travel to another process."""

    name: str
    """The row that the run belongs to."""
    method: str
    benchmark: str
    asked: str
    """The protocol in the words of the user; `protocol` is one of its orders where it has several."""
    protocol: Protocol
    batch_size: int
    batches: int
    """Length of the stream."""
    seed: int = 0
    settings: Pairs = ()
    preset: str = "none"
    model: str | None = None
    data: str | None = None
    preprocessing: str = "model"
    precision: str = "fp32"
    device: str = "auto"
    options: Pairs = ()
    """Options of the benchmark."""
    tuned: Pairs = ()
    """Of settings that `testdg tune` chose, the name of the file that holds the choice."""
    source: str | None = None
    """Folder of clean images in place of the benchmark's training images."""
    guard: bool = False
    track: str | None = None
    """What else keeps the numbers of the run, such as tensorboard; they do not depend on it."""

    @property
    def setup(self) -> Setup:
        """What must be loaded for the run."""
        return Setup(self.benchmark, self.data, self.options, self.model, self.preprocessing)

    def reference(self) -> Cell:
        """Source on the same stream; it draws no random numbers, so all seeds share it."""
        bare = replace(self, settings=(), preset="none", tuned=(), source=None, guard=False)
        return replace(bare, name="Source", method=SOURCE, seed=0)

    @property
    def fixed(self) -> dict[str, Any]:
        """Settings that the user chose; they win over those of the preset."""
        return {"seed": self.seed, "precision": self.precision, **dict(self.settings)}

    def __str__(self) -> str:
        order = f", order {self.protocol.order}" if isinstance(self.protocol.order, int) else ""
        seed = "" if self.method == SOURCE else f", seed {self.seed}"
        return f"{self.name}, {self.benchmark}, {self.asked}{order}{seed}"


@dataclass(frozen=True)
class Grid:
    """Values for all runs, and tables that change some of them; without tables, the values are the only run.

    `method`, `benchmark`, `protocol` and `seeds` may be lists: every combination is run. docs/bench.md has all keys.
    """

    defaults: Mapping[str, Any] = field(default_factory=dict)
    runs: Sequence[Mapping[str, Any]] = ()
    title: str = "the grid"

    def override(self, values: Mapping[str, Any]) -> Grid:
        """The same grid with some values replaced, in all runs."""
        runs = tuple({**run, **values} for run in self.runs)
        return replace(self, defaults={**self.defaults, **values}, runs=runs)

    @classmethod
    def from_options(cls, values: Mapping[str, Any], pairs: Sequence[str] = (), title: str = "the grid") -> Grid:
        """The grid of values alone; `pairs` are settings as METHOD.KEY=VALUE, of one method KEY=VALUE."""
        return cls({**values, "settings": read_settings(pairs, values["method"])}, title=title)

    @classmethod
    def from_toml(cls, path: str | Path) -> Grid:
        """Read a grid from a file: values for all runs, and `[[run]]` tables."""
        values = read_toml(Path(path), "grid file")
        runs = values.pop("run", [])
        if not isinstance(runs, list) or not all(isinstance(run, dict) for run in runs):
            raise UserError(f"grid file {path}: run must be tables, each under [[run]]; got {runs!r}")
        return cls(values, tuple(runs), str(path))


def read_settings(pairs: Sequence[str], methods: Sequence[str]) -> dict[str, dict[str, str]]:
    """Settings of each method from METHOD.KEY=VALUE; of one method alone, from KEY=VALUE, too."""
    settings: dict[str, dict[str, str]] = {}
    methods = list(dict.fromkeys(methods))
    for pair in pairs:
        name, equals, value = pair.partition("=")
        method, dot, key = name.partition(".")
        if not equals:
            raise UserError(f"--set takes key=value; got {pair!r}")
        if dot and method in methods:
            settings.setdefault(method, {})[key] = value
        elif len(methods) == 1 and not dot:
            settings.setdefault(methods[0], {})[name] = value
        else:
            remedy = f"{methods[-1]}.{key or name}={value}" if methods else "METHOD.KEY=VALUE"
            raise UserError(f"--set {pair} names none of the methods {', '.join(methods)}: write it as {remedy}")
    return settings
