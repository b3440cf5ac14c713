"""Grids: values for all runs and tables that change some of them; `expand` checks them and makes the runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import Any

import msgspec

from testdg.core.adapter import Adapter
from testdg.core.settings import make_settings, typed_settings
from testdg.data.benchmarks import Benchmark, benchmarks, find_benchmark
from testdg.errors import ErrorCollector, UserError
from testdg.files import read_toml
from testdg.methods import find_method
from testdg.runs.protocol import read_protocols
from testdg.runs.session import open_benchmark, preset_of
from testdg.schema import check_keys, check_value, field_types
from testdg.spec import CHOICES, SOURCE, RunSpec, keys
from testdg.studies.variants import Tuned

Table = Mapping[str, Any]


@dataclass(frozen=True)
class Grid:
    """Values for all runs, and tables that change some of them; without tables, the values are the only run.

    `method`, `benchmark`, `protocol` and `seeds` may be lists: every combination is run. docs/bench.md has all keys.
    """

    defaults: Table = field(default_factory=dict)
    runs: Sequence[Table] = ()
    title: str = "the grid"
    """Name of the grid in error messages; empty if its values are options of a command."""

    def override(self, values: Table) -> Grid:
        """The same grid with some values replaced, in all runs."""
        runs = tuple({**run, **values} for run in self.runs)
        return replace(self, defaults={**self.defaults, **values}, runs=runs)

    @classmethod
    def from_toml(cls, path: str | Path) -> Grid:
        """Read a grid from a file: values for all runs, and `[[run]]` tables."""
        values = read_toml(Path(path), "grid file")
        runs = values.pop("run", [])
        if not isinstance(runs, list) or not all(isinstance(run, dict) for run in runs):
            message = f"grid file {path}: write each run as a table under [[run]]; got {runs!r}"
            raise UserError(message, code="wrong-grid")
        return cls(values, tuple(runs), str(path))


def read_settings(pairs: Sequence[str], methods: Sequence[str]) -> dict[str, dict[str, str]]:
    """The settings of each method from METHOD.KEY=VALUE, or from KEY=VALUE if there is one method.

    Values stay texts; `expand` converts them to the types of the settings.
    """
    settings: dict[str, dict[str, str]] = {}
    methods = list(dict.fromkeys(methods))
    for pair in pairs:
        name, equals, value = pair.partition("=")
        method, dot, key = name.partition(".")
        if not equals:
            raise UserError(f"--set takes key=value; got {pair!r}", code="setting-syntax")
        if dot and method in methods:
            settings.setdefault(method, {})[key] = value
        elif len(methods) == 1 and not dot:
            settings.setdefault(methods[0], {})[name] = value
        else:
            remedy = f"{methods[-1]}.{key or name}={value}" if methods else "METHOD.KEY=VALUE"
            message = f"--set {pair} does not name one of the methods {', '.join(methods)}: write it as {remedy}"
            raise UserError(message, code="setting-syntax")
    return settings


def method_settings(method: str, pairs: Sequence[str]) -> dict[str, Any]:
    """The settings of one method from KEY=VALUE, converted to their types."""
    settings = read_settings(pairs, [method]).get(method, {})
    if "seed" in settings:
        raise _seed_error(settings["seed"])
    return typed_settings(find_method(method).Settings, settings)


def expand(grid: Grid) -> list[RunSpec]:
    """The runs of a grid. Each stream and model has one run of Source, followed by the runs that it is compared with.

    The spec of that Source run is the key of a group: runs of a group share data, stream, model, precision and so on.
    Tables have a row per name. Within a group, runs with the same name may therefore differ only in their seed, and the
    same run cannot have two names. A run that is listed twice is computed once. All mistakes are reported together.
    """
    errors = ErrorCollector()
    expansion = _Expansion(grid, errors)
    groups: dict[RunSpec, list[RunSpec]] = {}
    for table in expansion.tables():
        for source, spec in expansion.runs(table):
            groups.setdefault(source, []).append(spec)
    ordered: list[RunSpec] = []
    for source, group in groups.items():
        first = next((spec for spec in group if spec.method == SOURCE), source)
        names: dict[str, RunSpec] = {}
        runs: dict[RunSpec, str] = {}
        for spec in [first, *(spec for spec in group if spec.method != SOURCE)]:
            other = names.setdefault(spec.name, spec)
            bare, where = msgspec.structs.replace(spec, name=""), f"on {spec.benchmark}, {spec.protocol}"
            if msgspec.structs.replace(other, seed=spec.seed) != spec:
                message = f"different runs {where} are called {spec.name!r}: give each a name"
                errors.add(UserError(message, code="same-name"))
            elif runs.get(bare, spec.name) != spec.name:
                message = f"runs {runs[bare]!r} and {spec.name!r} {where} are the same: leave out one"
                errors.add(UserError(message, code="same-run"))
            elif bare not in runs:
                runs[bare] = spec.name
                ordered.append(spec)
    errors.raise_any(grid.title)
    return ordered


@dataclass
class _Table:
    """The checked values of one table, by field of `RunSpec`: lists for axes, perhaps dicts by benchmark for others."""

    values: dict[str, Any] = field(default_factory=dict)
    settings: Table = field(default_factory=dict)
    name: str | None = None


class _Expansion:
    """Converts the tables of a grid to runs: every method, on every stream of every benchmark, with every seed.

    `tables` checks values one by one, `runs` checks them against each other. A mistake is added to `errors`, and its
    value or run is left out, so that one command reports the mistakes of the whole file.
    """

    def __init__(self, grid: Grid, errors: ErrorCollector) -> None:
        self.grid, self.errors = grid, errors
        self.common: Mapping[str, Table] = {}
        """By method: the settings that all its runs share."""

    def tables(self) -> list[_Table]:
        """The tables of the grid, each completed with the values for all runs."""
        first, *runs = [
            self._check(values, number) for number, values in enumerate([self.grid.defaults, *self.grid.runs])
        ]
        if all(isinstance(values, dict) for values in first.settings.values()):
            self.common = first.settings
        else:
            message = f"settings must be a table for each method, as in [settings.tent]; got {first.settings!r}"
            self.errors.add(UserError(message, code="wrong-value"))
        for name in self.common:
            self.errors.attempt("settings", find_method, name)
        tables = [_Table({**first.values, **run.values}, run.settings, run.name) for run in runs or [_Table()]]
        for number, values in enumerate(self.grid.runs or [{}], 1):
            if not {"method", "methods"} & {*self.grid.defaults, *values}:
                where = f"run {number}" if self.grid.runs else "it"
                message = f'{where} does not name a method: add one, such as method = "testdg"'
                self.errors.add(UserError(message, code="no-method"))
        return [table for table in tables if "method" in table.values]

    def _check(self, values: Table, number: int) -> _Table:
        """The valid values of a table. Number 0 contains the values for all runs and cannot have a name."""
        known = {name: name for name in CHOICES} | {choice.key: name for name, choice in CHOICES.items()}
        allowed = [*(choice.key for choice in CHOICES.values()), "settings", *(["name"] if number else [])]
        where, table = f"run {number}" if number else "", _Table()
        for key, value in values.items():
            with self.errors.collecting(where):
                if key == "settings":
                    if not isinstance(value, dict):
                        raise UserError(f"settings must be a table; got {value!r}", code="wrong-value")
                    table.settings = value
                elif key == "name" and number:
                    table.name = check_value(field_types(RunSpec)[key], key, value)
                elif key not in known:
                    check_keys([key], allowed)
                elif (valid := self._check_field(known[key], key, value, where)) is not None:
                    table.values[known[key]] = valid
        return table

    def _check_field(self, name: str, key: str, value: Any, where: str) -> Any:
        """A valid value of a field; None after a mistake."""
        choice = CHOICES[name]
        shown = key if self.grid.title else choice.option
        if isinstance(value, dict) and choice.scope != "axis":  # a value for each benchmark
            for benchmark in value:
                self.errors.attempt(shown, find_benchmark, benchmark)
            parts = list(value.values())
        else:
            several = choice.scope == "axis" and isinstance(value, list | tuple) and value
            parts = list(value) if several else [value]
        found = [self.errors.attempt(where, check_value, choice.type, shown, part) for part in parts]
        if None in found:
            return None
        if choice.scope == "axis":
            return found
        return dict(zip(value, found, strict=True)) if isinstance(value, dict) else found[0]

    def runs(self, table: _Table) -> Iterator[tuple[RunSpec, RunSpec]]:
        """Each run of a table, in a pair after the run of Source on the same stream and model."""
        values, attempt = table.values, self.errors.attempt
        methods = [method for name in values["method"] if (method := attempt("", find_method, name))]
        if "source" in values and methods and not values.get("guard") and not any(map(_learns_source, methods)):
            message = "source (--source) is only for methods that learn from source images, such as align: leave it out"
            self.errors.add(UserError(message, code="option-conflict"))
        read = []
        for text in values.get("protocol", ()):
            read += [(text, one) for one in attempt("", read_protocols, text) or ()]
        for name in values.get("benchmark", [RunSpec().benchmark]):
            data = _values_for(values, name)
            if (benchmark := attempt("", open_benchmark, RunSpec(benchmark=name, **data))) is None:
                continue
            tuned = attempt("", Tuned.read, data["tuned"]) if "tuned" in data else None
            rows = [row for method in methods if (row := self._row(method, benchmark, table, data, tuned))]
            shared = {key: value for key, value in data.items() if key not in _OF_METHODS}
            streams: list[dict[str, Any]] = []
            for text, one in read or [(benchmark.protocol, one) for one in read_protocols(benchmark.protocol)]:
                for protocol in attempt("", one.expand, benchmark) or ():
                    with self.errors.collecting():
                        stream = protocol.stream(protocol.choose(benchmark), data.get("batch_size"))
                        sizes = {"batch_size": stream.batch_size, "batches": len(stream)}
                        streams.append({"protocol": text, "stream": protocol, **sizes})
            for row, own, seed in product(rows, streams, values.get("seed", [0])):
                same = {**shared, **own, "benchmark": name, "precision": row["precision"]}
                source = RunSpec(**same, name="Source", method=SOURCE, preset="none")
                yield source, RunSpec(**{**same, **row, "seed": 0 if row["method"] == SOURCE else seed})

    def _row(
        self, method: type[Adapter], benchmark: Benchmark, table: _Table, data: Table, tuned: Tuned | None
    ) -> dict[str, Any] | None:
        """The fields in which the runs of a method differ from Source on the same stream; None after a mistake.

        Settings override each other in this order: preset, tuned, those of all runs, those of the table.
        """
        name = table.name or method.title
        settings: dict[str, Any] = {}
        for where, given in ((method.name, self.common.get(method.name, {})), (name, table.settings)):
            for key, value in given.items():
                with self.errors.collecting(where):
                    if key == "seed":
                        raise _seed_error(value)
                    settings |= typed_settings(method.Settings, {key: value})
        row: dict[str, Any] = {"name": name, "method": method.name, "preset": data.get("preset")}
        if tuned is not None and method.name != SOURCE:
            with self.errors.collecting(name):
                if (chosen := tuned.find(method.name, settings)) is None:
                    message = f"{data['tuned']} has no row for {method.name}: run `testdg tune {method.name}` first"
                    raise UserError(message, code="not-tuned")
                more = {key: value for key, value in chosen.settings.items() if key not in settings}
                row["chosen_in"] = dict.fromkeys(sorted(more), Path(data["tuned"]).name)
                row["preset"] = row["preset"] or chosen.preset
                settings |= typed_settings(method.Settings, more)
        row["precision"] = settings.pop("precision", data.get("precision", "fp32"))
        if method.name == SOURCE:
            return {**row, "preset": "none"}
        with self.errors.collecting(name):
            if benchmark.task not in method.tasks:
                tasks = " and ".join(method.tasks)
                message = f"{method.name} is for {tasks}; {benchmark.name} is for {benchmark.task}"
                raise UserError(message, code="wrong-task")
            preset = preset_of(RunSpec(method=method.name, preset=row["preset"]), benchmark)
            make_settings(method.Settings, {**method.preset(preset), **settings})
            of_method = {key: data[key] for key in ("source", "guard") if key in data}
            return {**row, **of_method, "preset": preset or "none", "settings": dict(sorted(settings.items()))}
        return None


_OF_METHODS = ("preset", "tuned", "source", "guard", "precision")
"""Fields that do not affect the run of Source on the same stream, or that settings of the method may change."""


def _values_for(values: Table, benchmark: str) -> dict[str, Any]:
    """The values of a table for one benchmark, except for the axes."""
    found = {}
    for key in keys("run", "benchmark"):
        value = values.get(key)
        value = value.get(benchmark) if isinstance(value, dict) else value
        if value is not None:
            found[key] = value
    known, several = benchmarks(), len(values.get("benchmark", ())) > 1
    if several and isinstance(values.get("data"), str) and benchmark in known and known[benchmark].embedded:
        found.pop("data")  # an embedded benchmark has no folder: the others use it
    return found


def _seed_error(seed: object) -> UserError:
    message = f"the seed is not a setting here: use --seed {seed}, or seeds = {seed} in a grid"
    return UserError(message, code="setting-syntax")


def _learns_source(kind: type[Adapter]) -> bool:
    """Whether a method learns from source images by default."""
    return bool(kind.source_data) and getattr(kind.Settings(), "source_images", 0) > 0
