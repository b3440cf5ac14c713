"""Grids: values for all runs and tables that change some of them; `expand` checks them and makes the runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import Any

from testdg.core.adapter import Adapter
from testdg.core.settings import make_settings, typed_settings
from testdg.data.benchmarks import Benchmark, benchmarks, find_benchmark
from testdg.errors import ErrorCollector, UserError
from testdg.files import read_toml
from testdg.methods import find_method
from testdg.methods import methods as all_methods
from testdg.runs.protocol import Protocol, read_protocols
from testdg.runs.session import open_benchmark, preset_of
from testdg.schema import check_keys, check_value, field_types
from testdg.spec import CHOICES, SOURCE, RunSpec, keys
from testdg.studies.tuned import Chosen, Tuned

Table = Mapping[str, Any]


@dataclass(frozen=True)
class Grid:
    """Values for all runs, and tables that change some of them; without tables, the values are the only run.

    `method`, `benchmark`, `protocol` and `seeds` may be lists: every combination is run. docs/bench.md has all keys.
    """

    defaults: Table = field(default_factory=dict)
    runs: Sequence[Table] = ()
    title: str = "the grid"
    """What error messages call it; empty for the options of a command."""

    def override(self, values: Table) -> Grid:
        """The same grid with some values replaced, in all runs."""
        runs = tuple({**run, **values} for run in self.runs)
        return replace(self, defaults={**self.defaults, **values}, runs=runs)

    @classmethod
    def from_options(cls, values: Table, pairs: Sequence[str] = (), title: str = "the grid") -> Grid:
        """The grid of values alone; `pairs` are settings as METHOD.KEY=VALUE, of one method KEY=VALUE."""
        return cls({**values, "settings": read_settings(pairs, values["method"])}, title=title)

    @classmethod
    def from_toml(cls, path: str | Path) -> Grid:
        """Read a grid from a file: values for all runs, and `[[run]]` tables."""
        values = read_toml(Path(path), "grid file")
        runs = values.pop("run", [])
        if not isinstance(runs, list) or not all(isinstance(run, dict) for run in runs):
            message = f"grid file {path}: run must be tables, each under [[run]]; got {runs!r}"
            raise UserError(message, code="wrong-grid")
        return cls(values, tuple(runs), str(path))


def read_settings(pairs: Sequence[str], methods: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Typed settings of each method from METHOD.KEY=VALUE; of one method alone, from KEY=VALUE, too."""
    settings: dict[str, dict[str, Any]] = {}
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
            message = f"--set {pair} names none of the methods {', '.join(methods)}: write it as {remedy}"
            raise UserError(message, code="setting-syntax")
    known = all_methods()
    return {
        name: _typed(known[name], values) if name in known else values  # an unknown method is reported with the grid
        for name, values in settings.items()
    }


def expand(grid: Grid) -> list[RunSpec]:
    """Every run of a grid, with Source once for each stream and model first; all mistakes are reported together."""
    errors = ErrorCollector()
    expansion = _Expansion(errors, options=not grid.title)
    groups: dict[RunSpec, dict[RunSpec, None]] = {}
    for table in expansion.tables(grid):
        for spec in expansion.runs(table):
            source = spec.baseline()
            mine = source.with_(name=spec.name) if spec.method == SOURCE else spec
            groups.setdefault(source, {})[mine] = None
    ordered: list[RunSpec] = []
    for source, group in groups.items():
        named = [spec for spec in group if spec.method == SOURCE]
        specs = [(named or [source])[0], *(spec for spec in group if spec.method != SOURCE)]
        _check_names(specs, errors)
        ordered += specs
    errors.raise_any(grid.title)
    return ordered


class _Expansion:
    """Turns the tables of a grid into runs; mistakes are collected, and their runs left out."""

    def __init__(self, errors: ErrorCollector, *, options: bool) -> None:
        self.errors, self.options = errors, options
        self._tuned: dict[str, Tuned] = {}

    def tables(self, grid: Grid) -> list[Table]:
        """The values of each run; `common` are the settings of each method that all runs share."""
        defaults = self._checked(grid.defaults, "")
        common = defaults.pop("settings", {})
        if not all(isinstance(values, dict) for values in common.values()):
            message = f"settings must be a table for each method, as in [settings.tent]; got {common!r}"
            self.errors.add(UserError(message, code="wrong-value"))
            common = {}
        for name in common:
            self.errors.attempt("settings", find_method, name)
        tables: list[Table] = []
        for number, run in enumerate(grid.runs or ({},), 1):
            where = f"run {number}" if grid.runs else "it"
            table = {**defaults, **self._checked(run, f"{where}: "), "common": common}
            if "method" in table:
                tables.append(table)
            elif not {"method", "methods"} & {*grid.defaults, *run}:
                message = f'{where} names no method, as in method = "testdg"'
                self.errors.add(UserError(message, code="no-method"))
        return tables

    def _checked(self, values: Table, where: str) -> dict[str, Any]:
        """The valid values, by field of RunSpec: of an axis a list, of other fields perhaps one for each benchmark."""
        known = {choice.key: name for name, choice in CHOICES.items()}
        allowed = [*known, "settings", *(["name"] if where else [])]
        found: dict[str, Any] = {}
        for key, value in values.items():
            field_name = known.get(key) or (key if key in known.values() else None)
            if key in ("settings", "name") and key in allowed:
                kind: Any = dict[str, Any] if key == "settings" else field_types(RunSpec)["name"]
                valid = self.errors.attempt(where.removesuffix(": "), check_value, kind, key, value)
                found |= {} if valid is None else {key: valid}
            elif field_name is None:
                self.errors.attempt(where.removesuffix(": "), check_keys, [key], allowed)
            elif (valid := self._check_field(field_name, key, value, where.removesuffix(": "))) is not None:
                found[field_name] = valid
        return found

    def _check_field(self, name: str, key: str, value: Any, where: str) -> Any:
        """A valid value of a field; None after a mistake."""
        declared, shown = CHOICES[name].type, CHOICES[name].option if self.options else key
        if CHOICES[name].scope == "axis":
            items = list(value) if isinstance(value, list | tuple) and value else [value]
            found = [self.errors.attempt(where, check_value, declared, shown, item) for item in items]
            return None if None in found else found
        if isinstance(value, dict):  # a value for each benchmark
            for benchmark in value:
                self.errors.attempt(shown, find_benchmark, benchmark)
            several = {one: self.errors.attempt(where, check_value, declared, shown, v) for one, v in value.items()}
            return None if None in several.values() else several
        return self.errors.attempt(where, check_value, declared, shown, value)

    def runs(self, table: Table) -> Iterator[RunSpec]:
        """The runs of one table."""
        attempt = self.errors.attempt
        methods = [method for name in table["method"] if (method := attempt("", find_method, name))]
        if "source" in table and methods and not table.get("guard") and not any(map(_learns_source, methods)):
            message = "source (--source) is for methods that measure clean images, as align does: leave it out"
            self.errors.add(UserError(message, code="option-conflict"))
        read = [(text, one) for text in table.get("protocol", ()) for one in attempt("", read_protocols, text) or ()]
        for name in table.get("benchmark", [RunSpec().benchmark]):
            data = self._values(table, name)
            if (benchmark := attempt("", open_benchmark, RunSpec(benchmark=name, **data))) is None:
                continue
            rows = [row for method in methods if (row := self._row(method, benchmark, table, data))]
            protocols = read or [(benchmark.protocol, one) for one in read_protocols(benchmark.protocol)]
            every = [
                (text, one) for text, protocol in protocols for one in attempt("", protocol.expand, benchmark) or ()
            ]
            streams = [made for one in every if (made := attempt("", _stream, *one, benchmark, data.get("batch_size")))]
            for row, stream, seed in product(rows, streams, table.get("seed", [0])):
                yield row.with_(**stream, seed=seed)

    def _values(self, table: Table, benchmark: str) -> dict[str, Any]:
        """The values of a table for a benchmark, apart from the axes."""
        found = {}
        for key in keys("run", "benchmark"):
            value = table.get(key)
            value = value.get(benchmark) if isinstance(value, dict) else value
            if value is not None:
                found[key] = value
        known, several = benchmarks(), len(table.get("benchmark", ())) > 1
        if several and isinstance(table.get("data"), str) and benchmark in known and known[benchmark].embedded:
            found.pop("data")  # a folder for several benchmarks is not that of an embedded one among them
        return found

    def _row(self, method: type[Adapter], benchmark: Benchmark, table: Table, data: Table) -> RunSpec | None:
        """What the runs of a method on a benchmark share."""
        name, attempt = table.get("name", method.title), self.errors.attempt
        settings: dict[str, Any] = {}
        for where, given in ((method.name, table["common"].get(method.name, {})), (name, table.get("settings", {}))):
            for pair in given.items():
                settings |= attempt(where, _typed, method, dict([pair])) or {}
        values, chosen = dict(data), attempt(name, self._chosen, method, data.get("tuned"), settings)
        if chosen is not None:
            own = sorted(chosen.settings.keys() - settings.keys())  # what the user does not give
            values = {"preset": chosen.preset, **values, "chosen_in": dict.fromkeys(own, Path(data["tuned"]).name)}
            settings = {**chosen.settings, **settings}
        precision = settings.pop("precision", values.get("precision", "fp32"))
        values |= {"tuned": None, "precision": precision, "settings": dict(sorted(settings.items()))}
        spec = RunSpec(**{**values, "name": name, "method": method.name, "benchmark": benchmark.name})
        preset = attempt(name, _checked_preset, method, benchmark, spec)
        return None if preset is None else spec.with_(preset=preset)

    def _chosen(self, method: type[Adapter], file: str | None, settings: Table) -> Chosen | None:
        """The settings that a file has for a method; None without a file, and for Source, which has no settings."""
        if file is None or method.name == SOURCE:
            return None
        if file not in self._tuned:
            self._tuned[file] = Tuned.read(file)
        chosen = self._tuned[file].find(method.name, settings)
        if chosen is None:
            message = f"{file} has nothing for {method.name}: choose with `testdg tune {method.name}` first"
            raise UserError(message, code="not-tuned")
        return replace(chosen, settings=_typed(method, chosen.settings))


def _stream(text: str, protocol: Protocol, benchmark: Benchmark, batch_size: int | None) -> dict[str, Any]:
    """What the runs of a protocol on a benchmark share."""
    stream = protocol.stream(protocol.choose(benchmark), batch_size)
    return {"protocol": text, "stream": protocol, "batch_size": stream.batch_size, "batches": len(stream)}


def _typed(method: type[Adapter], settings: Table) -> dict[str, Any]:
    """Settings of a method; texts are read as on the command line, so that "none" is None."""
    if "seed" in settings:
        seed = settings["seed"]
        message = f"the seed is not a setting here: use --seed {seed}, or seeds = {seed} in a grid"
        raise UserError(message, code="setting-syntax")
    return typed_settings(method.Settings, settings)


def _checked_preset(method: type[Adapter], benchmark: Benchmark, spec: RunSpec) -> str:
    """The preset of a run by name, "none" for none; settings must fit it."""
    if method.name == SOURCE:
        return "none"  # it has no settings
    if benchmark.task not in method.tasks:
        tasks = " and ".join(method.tasks)
        message = f"{method.name} is for {tasks}; {benchmark.name} is for {benchmark.task}"
        raise UserError(message, code="wrong-task")
    chosen = preset_of(spec, benchmark)
    make_settings(method.Settings, {**method.preset(chosen), **spec.settings})
    return chosen or "none"


def _check_names(group: Sequence[RunSpec], errors: ErrorCollector) -> None:
    """Refuse different runs with one name on a stream, and one run under two names."""
    names: dict[str, RunSpec] = {}
    runs: dict[RunSpec, str] = {}
    for spec in group:
        where = f"on {spec.benchmark}, {spec.protocol}"
        if names.setdefault(spec.name, spec.with_(seed=0)) != spec.with_(seed=0):
            message = f"different runs {where} are called {spec.name!r}: give each a name"
            errors.add(UserError(message, code="same-name"))
        if (other := runs.setdefault(spec.with_(name=""), spec.name)) != spec.name:
            message = f"runs {other!r} and {spec.name!r} {where} are the same: leave out one"
            errors.add(UserError(message, code="same-run"))


def _learns_source(kind: type[Adapter]) -> bool:
    """Whether a method learns from source images by default."""
    return bool(kind.source_data) and getattr(kind.Settings(), "source_images", 0) > 0
