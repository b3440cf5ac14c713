"""Protocol: which domains a stream visits, in which order, how its images are drawn, and when the adapter is reset.

One has a name, perhaps with options (`cyclic,rounds=5`), or is read from a TOML file.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

from testdg.data.benchmarks import Benchmark, Options
from testdg.data.stream import Sampling, SamplingName, Segment, Stream
from testdg.errors import UserError, look_up, unknown
from testdg.files import read_toml
from testdg.runs.protocol_rules import ORDERS, in_order, mistakes, read_size
from testdg.runs.views import Views

Severity = int | None | Literal["gradual"] | tuple[int, ...]
FIRST_RAMP = (5, 4, 3, 2, 1)
LATER_RAMP = (1, 2, 3, 4, 5, 4, 3, 2, 1)
PROTOCOLS: dict[str, dict[str, Any]] = {
    "continual": {},
    "held-out": {"held_out": 5},
    "leave-one-out": {"held_out": "each"},
    "gradual": {"severity": "gradual", "order": 0},
    "cyclic": {"rounds": 3},
    "mixed": {"sampling": "mixed"},
    "dirichlet": {"sampling": "dirichlet"},
    "orders": {"order": "all"},
    **{f"order-{number}": {"order": number} for number in range(len(ORDERS))},
}


class Visit(NamedTuple):
    """One visit to a domain, by name; the adapter learns there or is only tested."""

    name: str
    severity: int | None
    round: int
    learn: bool


@dataclass(frozen=True, kw_only=True)
class Protocol:
    """How a benchmark becomes a stream; docs/protocols.md explains the fields."""

    name: str = "continual"
    order: Literal["benchmark"] | int | tuple[str, ...] = "benchmark"
    severity: Literal["benchmark", "gradual"] | tuple[int, ...] = "benchmark"
    rounds: int = 1
    held_out: int | Literal["each"] | tuple[str, ...] = 0
    then: Literal["end", "adapt"] = "end"
    sampling: SamplingName = "file"
    concentration: float = 0.1
    seed: int = 0
    resets: Literal["once", "domain"] = "once"
    views: int = 1
    window: str = "none"
    stride: str = "none"

    def __post_init__(self) -> None:
        wrong = mistakes(asdict(self))
        if str(self.order) == "all":
            wrong.append("order all is ten protocols: read_protocols gives them")
        if wrong:
            raise UserError(f"protocol {self.name}: {'; '.join(wrong)}")

    def choose(self, benchmark: Benchmark) -> Benchmark:
        """The benchmark with the domains that the protocol names; the same where it names none."""
        if isinstance(self.order, str | int):
            return benchmark
        if benchmark.options.domains not in (None, self.order):
            raise UserError(f"protocol {self.name} names its domains itself: leave out --domains")
        chosen = copy.copy(benchmark)
        chosen.options = replace(benchmark.options, domains=self.order)
        return chosen

    def expand(self, benchmark: Benchmark) -> list[Protocol]:
        """The protocol itself; where each domain is held out once, a protocol for each."""
        if self.held_out != "each":
            return [self]
        return [replace(self, held_out=(name,)) for name in self.choose(benchmark).order]

    def split(self, benchmark: Benchmark) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Names of the domains that are adapted to, and of those that only test, in order."""
        names = in_order(self.order, benchmark.order) if isinstance(self.order, int) else list(benchmark.order)
        tested = self._tested(names)
        if len(tested) >= len(names):
            which = f"the last {self.held_out} domains" if isinstance(self.held_out, int) else ", ".join(tested)
            raise UserError(f"{self.name} tests on {which}; the stream has only {len(names)}")
        return tuple(name for name in names if self.then == "adapt" or name not in tested), tested

    def _tested(self, names: Sequence[str]) -> tuple[str, ...]:
        if self.held_out == "each":
            remedy = f"choose one, such as {self.name},held_out={names[0]}"
            raise UserError(f"protocol {self.name} is {len(names)} runs, one for each domain: {remedy}")
        if isinstance(self.held_out, int):
            return tuple(names[max(0, len(names) - self.held_out) :])  # of too many, all
        for name in self.held_out:
            if name not in names:
                raise unknown("domain to hold out", name, names)
        return self.held_out

    def levels(self, benchmark: Benchmark) -> Severity:
        """The severity, or the severities that every domain goes through."""
        if self.severity == "benchmark":
            return benchmark.options.severity if benchmark.has_severities else None
        if not benchmark.has_severities:
            raise UserError(f"{self.name} goes through severities; {benchmark.name} has none: use another protocol")
        if benchmark.options.severity != Options().severity:
            raise UserError(f"{self.name} chooses the severities itself: leave out --severity")
        return self.severity

    def stream(self, benchmark: Benchmark, batch_size: int | None = None) -> Stream:
        """The stream of a benchmark under this protocol."""
        if self.sampling in ("dirichlet", "sorted") and benchmark.task != "classification":
            told = f"sampling {self.sampling} needs one label per image"
            raise UserError(f"{told}; {benchmark.name} is for {benchmark.task}")
        if not self.make_views().plain and benchmark.task != "segmentation":
            raise UserError(f"views and windows are for segmentation; {benchmark.name} is for {benchmark.task}")
        severity = self.levels(benchmark)
        visits = make_visits(*self.split(benchmark), severity, self.rounds)
        segments = [Segment(benchmark.domain(v.name, v.severity), v.round, v.learn) for v in visits]
        sampling = Sampling(self.sampling, self.concentration, self.seed)
        return Stream(segments, benchmark.batch_size if batch_size is None else batch_size, sampling)

    def make_views(self) -> Views:
        """How the prediction that is scored looks at pictures."""
        return Views(self.views, read_size(self.window), read_size(self.stride))


def make_visits(domains: Sequence[str], held_out: Sequence[str], severity: Severity, rounds: int) -> list[Visit]:
    """Every visit of a stream, in order: the rounds over the domains, and the tests.

    Tests come at the end, or, of domains that are adapted to later on, before the first of these.
    """
    stations = [(name, number, True) for number in range(1, rounds + 1) for name in domains]
    fork = next((place for place, (name, _, _) in enumerate(stations) if name in held_out), len(stations))
    stations[fork:fork] = [(name, 1, False) for name in held_out]
    return [
        Visit(name, level, number, learn)
        for place, (name, number, learn) in enumerate(stations)
        for level in _ramp(severity, place)
    ]


def _ramp(severity: Severity, place: int) -> Iterable[int | None]:
    """Severities that the domain at a place of the stream goes through."""
    if severity == "gradual":
        return LATER_RAMP if place else FIRST_RAMP
    return severity if isinstance(severity, tuple) else (severity,)


def read_protocols(text: str | Path | Protocol) -> list[Protocol]:
    """Read a protocol: its name or TOML file, then `,key=value` as often as needed. Ten protocols for `order=all`."""
    if isinstance(text, Protocol):
        return [text]
    name, *pairs = str(text).split(",")
    if name.endswith(".toml"):
        base = {"name": Path(name).stem, **read_toml(Path(name), "protocol file")}
    else:
        base = {"name": name, **look_up("protocol", name, PROTOCOLS)}
    values = {**base, **dict(_read_pair(pair) for pair in pairs)}
    if wrong := mistakes(values):
        raise UserError(f"protocol {name}: {'; '.join(wrong)}")
    if values.get("order") != "all":
        return [_make(values)]
    several = [_make({**values, "order": number}) for number in range(len(ORDERS))]
    return [replace(one, name=f"order-{one.order}") for one in several] if name == "orders" else several


def read_protocol(text: str | Path | Protocol) -> Protocol:
    """Read a protocol that is one run."""
    protocol, *more = read_protocols(text)
    if more:
        raise UserError(f"protocol {text} is {1 + len(more)} runs, one for each order: choose one, such as order=0")
    return protocol


def _make(values: dict[str, Any]) -> Protocol:
    frozen: dict[str, Any] = {key: tuple(value) if isinstance(value, list) else value for key, value in values.items()}
    if isinstance(tested := frozen.get("held_out"), str) and tested != "each":
        frozen["held_out"] = (tested,)
    return Protocol(**frozen)


def _read_pair(pair: str) -> tuple[str, Any]:
    """Read `key=value`: a number where it is one, else a text."""
    key, equals, text = pair.partition("=")
    if not equals:
        raise UserError(f"a protocol takes options as key=value, as in cyclic,rounds=5; got {pair!r}")
    for kind in (int, float):
        try:
            return key.strip(), kind(text)
        except ValueError:
            continue
    return key.strip(), text.strip()
