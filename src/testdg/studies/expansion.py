"""`expand`: the cells of a grid, after everything that can be wrong with it was looked at."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from testdg.core.settings import Settings, make_settings
from testdg.data.benchmarks import Benchmark, benchmarks, find_benchmark, load_benchmark
from testdg.errors import UserError, hint
from testdg.methods import Adapter, find_method, parse_settings
from testdg.runs import Protocol, read_protocols
from testdg.runs.choices import CHOICES, choices_of, is_text, option_name
from testdg.runs.run import choose_preset
from testdg.studies.grid import SOURCE, Cell, Grid, Pairs
from testdg.studies.tuned import Chosen, Tuned

P = ParamSpec("P")
T = TypeVar("T")
Rule = tuple[Callable[[Any], bool], str]
Table = Mapping[str, Any]
_SOURCE = "source (--source)"
_BASE = {"benchmark": "digits-c", "seeds": 0}


class Mistakes:
    """Collects sentences, each once, so that all mistakes are told together."""

    def __init__(self) -> None:
        self.sentences: dict[str, None] = {}

    def note(self, sentence: str) -> None:
        """Remember a mistake."""
        self.sentences[sentence] = None

    def hear(self, where: str, function: Callable[P, T], *values: P.args, **named: P.kwargs) -> T | None:
        """Call a function; a mistake of the user is remembered, and None comes back."""
        try:
            return function(*values, **named)
        except UserError as error:
            self.note(f"{where}: {error}" if where else str(error))
            return None

    def tell(self, title: str) -> None:
        """Raise one error with all mistakes, if there are any; of options, which need no title, too."""
        if len(self.sentences) == 1:
            raise UserError(f"{title}: {next(iter(self.sentences))}".removeprefix(": "))
        if self.sentences:
            listed = "; ".join(f"({number}) {text}" for number, text in enumerate(self.sentences, 1))
            raise UserError(f"{title or 'the command'} has {len(self.sentences)} mistakes: {listed}")


_TABLE: Rule = (lambda value: isinstance(value, dict), "a table")
_TABLES: Rule = (
    lambda value: isinstance(value, dict) and all(isinstance(item, dict) for item in value.values()),
    "a table for each method, as in [settings.tent]",
)
_CHOSEN: dict[str, Rule] = {key: (choice.fits, choice.rule) for key, choice in CHOICES.items()}
RUN: dict[str, Rule] = {"name": (is_text, "a text"), **_CHOSEN, "settings": _TABLE}
TOP: dict[str, Rule] = {**_CHOSEN, "settings": _TABLES}


def sound(
    values: Mapping[str, Any], rules: Mapping[str, Rule], where: str, mistakes: Mistakes, *, options: bool = False
) -> dict[str, Any]:
    """The values that are as they must be; all others are noted, as options where the values are of such."""
    kept = {}
    for key, value in values.items():
        several = isinstance(value, dict) and key in CHOICES and CHOICES[key].of != "axis"  # one for each benchmark
        if key not in rules:
            mistakes.note(f"{where}unknown key {key!r}, {hint(key, rules)}")
        elif not all(rules[key][0](item) for item in (value.values() if several else (value,))):
            name = option_name(key) if options and key in CHOICES else key
            mistakes.note(f"{where}{name} must be {rules[key][1]}; got {_shown(value)}")
        else:
            kept[key] = value
    return kept


def _shown(value: Any) -> str:
    """A value as the user gave it, who knows nothing of lists of one."""
    if isinstance(value, list | tuple) and len(value) < 2:
        return repr(value[0]) if value else "nothing"
    return repr(value)


def expand(grid: Grid) -> list[Cell]:
    """Every cell of a grid, with Source once for each stream and model; all mistakes are told at once."""
    mistakes = Mistakes()
    expansion = _Expansion(mistakes)
    groups: dict[Cell, dict[Cell, None]] = {}
    for cell in [cell for table in _tables(grid, mistakes) for cell in expansion.cells(table)]:
        source = cell.reference()
        groups.setdefault(source, {})[replace(source, name=cell.name) if cell.method == SOURCE else cell] = None
    ordered = [_source_first(source, list(group)) for source, group in groups.items()]
    for cells in ordered:
        _check_names(cells, mistakes)
    mistakes.tell(grid.title)
    return [cell for cells in ordered for cell in cells]


def _tables(grid: Grid, mistakes: Mistakes) -> list[Table]:
    """The values of each run, complete; `common` are the settings of each method that all runs share."""
    defaults = sound(grid.defaults, TOP, "", mistakes, options=not grid.title)
    common = defaults.pop("settings", {})
    for name in common:
        mistakes.hear("settings", find_method, name)
    tables: list[Table] = []
    for number, run in enumerate(grid.runs or ({},), 1):
        where = f"run {number}" if grid.runs else "it"
        table = {**_BASE, **defaults, **sound(run, RUN, f"{where}: ", mistakes), "common": common}
        if "method" in table:
            tables.append(table)
        elif "method" not in {**grid.defaults, **run}:
            mistakes.note(f'{where} names no method, as in method = "testdg"')
    return tables


class _Expansion:
    """Turns tables into cells; what is wrong is noted, and its cells are left out."""

    def __init__(self, mistakes: Mistakes) -> None:
        self.mistakes = mistakes
        self._opened: dict[tuple[str, str | None, Pairs], Benchmark | None] = {}
        self._tuned: dict[str, Tuned] = {}

    def cells(self, table: Table) -> Iterator[Cell]:
        """The cells of one table."""
        hear = self.mistakes.hear
        self._check_keys(table)
        methods = [method for name in _list(table["method"]) if (method := hear("", find_method, name))]
        benchmarks = [found for name in _list(table["benchmark"]) if (found := self._open(name, table))]
        if "source" in table and methods and not table.get("guard") and not any(map(_learns_source, methods)):
            self.mistakes.note(f"{_SOURCE} is for methods that measure clean images, as align does: leave it out")
        named = _list(table["protocol"]) if "protocol" in table else []
        protocols = [(text, one) for text in named for one in hear("", read_protocols, text) or ()]
        for benchmark in benchmarks:
            rows = [row for method in methods if (row := self._row(method, benchmark, table))]
            size = _pick(table, "batch_size", benchmark.name)
            chosen = protocols or [(benchmark.protocol, one) for one in read_protocols(benchmark.protocol)]
            every = [(text, one) for text, protocol in chosen for one in hear("", protocol.expand, benchmark) or ()]
            streams = [made for text, one in every if (made := hear("", _stream, text, one, benchmark, size))]
            for row, stream, seed in product(rows, streams, _list(table["seeds"])):
                hear(row["name"], make_settings, Settings, {"seed": seed})
                yield Cell(**row, **stream, seed=seed)

    def _check_keys(self, table: Table) -> None:
        """Values that differ between benchmarks must name benchmarks."""
        for key in CHOICES.keys() - choices_of("axis").keys():
            for name in table[key] if isinstance(table.get(key), dict) else ():
                self.mistakes.hear(key, find_benchmark, name)

    def _open(self, name: str, table: Table) -> Benchmark | None:
        """The benchmark with the options of a table, opened once."""
        key = name, _data(table, name), _options(table, name)
        if key not in self._opened:
            self._opened[key] = self.mistakes.hear("", load_benchmark, name, key[1], **dict(key[2]))
        return self._opened[key]

    def _chosen(self, method: type[Adapter], file: str | None, settings: Table) -> Chosen | None:
        """What a file has for a method; None where there is no file, and for Source, which has nothing to set."""
        if file is None or method.name == SOURCE:
            return None
        if file not in self._tuned:
            self._tuned[file] = Tuned.read(file)
        chosen = self._tuned[file].find(method.name, settings)
        if chosen is None:
            raise UserError(f"{file} has nothing for {method.name}: choose with `testdg tune {method.name}` first")
        read = {k: v for pair in chosen.settings.items() for k, v in _read_setting(method, *pair).items()}
        return replace(chosen, settings=read)

    def _row(self, method: type[Adapter], benchmark: Benchmark, table: Table) -> dict[str, Any] | None:
        """What the cells of a method on a benchmark share."""
        name = table.get("name", method.title)
        settings: dict[str, Any] = {}
        common = table["common"].get(method.name, {})
        for where, given in ((method.name, common), (name, table.get("settings", {}))):
            for pair in given.items():
                settings |= self.mistakes.hear(where, _read_setting, method, *pair) or {}
        file = _pick(table, "tuned", benchmark.name)
        chosen = self.mistakes.hear(name, self._chosen, method, file, settings)
        fields = {key: value for key in choices_of("run") if (value := _pick(table, key, benchmark.name)) is not None}
        fields.pop("batch_size", None)
        fields |= {"data": _data(table, benchmark.name), "tuned": ()}
        if chosen is not None:
            own = sorted(chosen.settings.keys() - settings.keys())  # what the user does not give
            fields |= {"preset": fields.get("preset", chosen.preset)}
            fields["tuned"] = tuple((key, Path(file).name) for key in own)
            settings = {**chosen.settings, **settings}
        fields["precision"] = settings.pop("precision", fields.get("precision", "fp32"))
        preset = self.mistakes.hear(name, _find_preset, method, benchmark, fields.get("preset"), settings)
        if preset is None:
            return None
        about = {"name": name, "method": method.name, "benchmark": benchmark.name, "settings": _pairs(settings)}
        return {**fields, **about, "preset": preset, "options": _options(table, benchmark.name)}


def _stream(asked: str, protocol: Protocol, benchmark: Benchmark, batch_size: int | None) -> dict[str, Any]:
    """What the cells of a protocol on a benchmark share."""
    stream = protocol.stream(protocol.choose(benchmark), batch_size)
    return {"asked": asked, "protocol": protocol, "batch_size": stream.batch_size, "batches": len(stream)}


def _read_setting(method: type[Adapter], key: str, value: Any) -> dict[str, Any]:
    """Read and check one setting; texts are read as on the command line, so that "none" is None."""
    if key == "seed":
        raise UserError(f"the seed is no setting here: use --seed {value}, or seeds = {value} in a grid")
    found = parse_settings(method.Settings, [f"{key}={value}"])[key] if isinstance(value, str) else value
    make_settings(method.Settings, {key: found})
    return {key: found}


def _find_preset(method: type[Adapter], benchmark: Benchmark, wanted: str | None, settings: Table) -> str:
    """The preset of a cell by name, "none" for none; settings must fit it."""
    if method.name == SOURCE:
        return "none"  # it has nothing to set
    if benchmark.task not in method.tasks:
        raise UserError(f"{method.name} is for {' and '.join(method.tasks)}; {benchmark.name} is for {benchmark.task}")
    chosen = choose_preset(method, benchmark, wanted)
    make_settings(method.Settings, {**method.preset(chosen), **settings})
    return chosen or "none"


def _check_names(group: Sequence[Cell], mistakes: Mistakes) -> None:
    """Refuse different runs with one name on a stream, and one run under two names."""
    names: dict[str, Cell] = {}
    runs: dict[Cell, str] = {}
    for cell in group:
        where = f"on {cell.benchmark}, {cell.asked}"
        if names.setdefault(cell.name, replace(cell, seed=0)) != replace(cell, seed=0):
            mistakes.note(f"different runs {where} are called {cell.name!r}: give each a name")
        if (other := runs.setdefault(replace(cell, name=""), cell.name)) != cell.name:
            mistakes.note(f"runs {other!r} and {cell.name!r} {where} are the same: leave out one")


def _source_first(source: Cell, group: list[Cell]) -> list[Cell]:
    named = [cell for cell in group if cell.method == SOURCE]
    return [(named or [source])[0], *(cell for cell in group if cell.method != SOURCE)]


def _pick(table: Table, key: str, benchmark: str) -> Any:
    """The value of a key, or the one for a benchmark where there are several."""
    value = table.get(key)
    return value.get(benchmark) if isinstance(value, dict) else value


def _data(table: Table, benchmark: str) -> str | None:
    """The data folder of a benchmark; one for several is not that of an embedded one among them."""
    data, several = table.get("data"), len(_list(table["benchmark"])) > 1
    known = benchmarks()
    shared = several and isinstance(data, str) and benchmark in known and known[benchmark].embedded
    return None if shared else _pick(table, "data", benchmark)


def _learns_source(kind: type[Adapter]) -> bool:
    """Whether a method learns from source images by itself; one that needs labels says so later."""
    return bool(kind.source_data) and getattr(kind.Settings(), "source_images", 0) > 0


def _options(table: Table, benchmark: str) -> Pairs:
    return _pairs(
        {key: value for key in choices_of("benchmark") if (value := _pick(table, key, benchmark)) is not None}
    )


def _pairs(values: Table) -> Pairs:
    return tuple(sorted((key, tuple(value) if isinstance(value, list) else value) for key, value in values.items()))


def _list(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list | tuple) else [value]
