"""Protocol: which domains a stream visits, in which order, how its images are drawn, and when the adapter is reset.

A protocol has a name, perhaps with options (`cyclic,rounds=5`), or is read from a TOML file.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import msgspec
from msgspec import Meta, Struct

from testdg.data.benchmarks import Benchmark, Options
from testdg.data.corruptions import STANDARD_ORDER
from testdg.data.stream import Sampling, SamplingName, Segment, Stream
from testdg.errors import UserError, look_up, unknown
from testdg.files import read_toml
from testdg.runs.views import Size, Views
from testdg.schema import Name, check_keys, check_value, field_types

Severity = int | None | Literal["gradual"] | tuple[int, ...]
Level = Annotated[int, Meta(ge=1, le=5)]
Count = Annotated[int, Meta(ge=1, le=10_000)]
FIRST_RAMP = (5, 4, 3, 2, 1)
LATER_RAMP = (1, 2, 3, 4, 5, 4, 3, 2, 1)
_STANDARD = "gn sn in db gb mb zb sw fr fo br co el px jp"
_TABLE = """
br px gn mb zb gb in jp db el sn fr sw fo co
jp sn zb fr co fo db el gn br gb in px sw mb
co db gn sn sw fr gb zb el jp px br in mb fo
sn fo gb px sw el br in db fr co gn mb jp zb
px gb zb sw fo in br mb fr jp gn sn co db el
mb sw fo sn db co zb br fr el gb gn px jp in
fr in jp co zb gb px sw db mb br el sn fo gn
gb zb in fo sw jp gn fr sn br co mb px db el
db mb zb sn gn gb jp fo co px fr sw br el in
co gn db zb fr gb jp fo px el sn in sw mb br
"""
_NAMES = dict(zip(_STANDARD.split(), STANDARD_ORDER, strict=True))
ORDERS = tuple(tuple(_NAMES[short] for short in line.split()) for line in _TABLE.strip().splitlines())
"""The orders of the fifteen corruptions over which CoTTA's gradual and ten-order experiments are averaged."""
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


class Protocol(Struct, frozen=True, kw_only=True):
    """How a benchmark becomes a stream; docs/protocols.md explains the fields."""

    name: Name = "continual"
    order: (
        Literal["benchmark", "all"] | Annotated[int, Meta(ge=0, le=9)] | Annotated[tuple[Name, ...], Meta(min_length=1)]
    ) = "benchmark"
    severity: Literal["benchmark", "gradual"] | Annotated[tuple[Level, ...], Meta(min_length=1)] = "benchmark"
    rounds: Count = 1
    held_out: Annotated[int, Meta(ge=0, le=10_000)] | Name | Annotated[tuple[Name, ...], Meta(min_length=1)] = 0
    then: Literal["end", "adapt"] = "end"
    sampling: SamplingName = "file"
    concentration: Annotated[float, Meta(ge=1e-6, le=1e6)] = 0.1
    seed: Annotated[int, Meta(ge=0, le=2**32 - 1)] = 0
    resets: Literal["once", "domain"] = "once"
    views: Literal[1, 2, 8, 14] = 1
    window: str = "none"
    stride: str = "none"

    def __post_init__(self) -> None:
        _convert(msgspec.structs.asdict(self), self.name)
        if wrong := self._contradictions():
            raise UserError(f"protocol {self.name}: {'; '.join(wrong)}", code="wrong-protocol")

    def _contradictions(self) -> list[str]:
        """Values that exclude each other, a phrase each."""
        wrong, mixed = [], self.sampling == "mixed"
        if self.order == "all":
            wrong.append("order all is ten protocols: read_protocols returns them")
        if mixed and self.resets == "domain":
            wrong.append("resets at every domain need domains one after the other; sampling is mixed")
        if mixed and self.severity == "gradual":
            wrong.append("gradual severities come one after the other; sampling is mixed")
        if self.resets == "domain" and self.held_out:
            wrong.append("held_out tests what was learnt from all domains; resets = domain forgets it")
        if self.then == "adapt" and (mixed or not self.held_out or self.held_out == "each"):
            wrong.append("then = adapt continues with the held-out domains, one after the other: name some")
        if self.concentration != 0.1 and self.sampling != "dirichlet":
            wrong.append(f"concentration belongs to sampling dirichlet; sampling is {self.sampling}")
        if self.seed != 0 and self.sampling in ("file", "sorted"):
            wrong.append(f"seed belongs to sampling mixed or dirichlet; sampling is {self.sampling}")
        whole, step = _read_size(self.window), _read_size(self.stride)
        for key, written, size in (("window", self.window, whole), ("stride", self.stride, step)):
            if written != "none" and size is None:
                wrong.append(f"{key} must be height and width in pixels, as in 1024x1024; got {written!r}")
        if (self.window == "none") != (self.stride == "none"):
            wrong.append("window and stride belong together, as in window=1024x1024,stride=768x768")
        elif whole and step and (step[0] > whole[0] or step[1] > whole[1]):
            wrong.append(f"stride {self.stride} leaves gaps between windows of {self.window}: make it smaller")
        return wrong

    def choose(self, benchmark: Benchmark) -> Benchmark:
        """The benchmark with the domains that the protocol names; the same where it names none."""
        if not isinstance(self.order, tuple):
            return benchmark
        if benchmark.options.domains not in (None, self.order):
            message = f"protocol {self.name} names its domains itself: leave out --domains"
            raise UserError(message, code="option-conflict")
        chosen = copy.copy(benchmark)
        chosen.options = replace(benchmark.options, domains=self.order)
        return chosen

    def expand(self, benchmark: Benchmark) -> list[Protocol]:
        """The protocol itself; where each domain is held out once, a protocol for each."""
        if self.held_out != "each":
            return [self]
        return [msgspec.structs.replace(self, held_out=(name,)) for name in self.choose(benchmark).order]

    def split(self, benchmark: Benchmark) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Names of the domains that are adapted to, and of those that only test, in order."""
        names = list(benchmark.order)
        if isinstance(self.order, int):
            if other := [name for name in names if name not in ORDERS[self.order]]:
                message = f"order {self.order} is one of the fifteen corruptions; {other[0]!r} is not among them"
                raise UserError(message, code="wrong-order")
            names = [name for name in ORDERS[self.order] if name in names]
        if self.held_out == "each":
            message = f"protocol {self.name} is {len(names)} runs, one for each domain"
            remedy = f"choose one, such as {self.name},held_out={names[0]}"
            raise UserError(f"{message}: {remedy}", code="several-runs")
        if isinstance(self.held_out, int):
            tested = tuple(names[max(0, len(names) - self.held_out) :])  # of too many, all
        else:
            tested = (self.held_out,) if isinstance(self.held_out, str) else self.held_out
        for name in tested:
            if name not in names:
                raise unknown("domain to hold out", name, names)
        if len(tested) >= len(names):
            which = f"the last {self.held_out} domains" if isinstance(self.held_out, int) else ", ".join(tested)
            message = f"{self.name} tests on {which}; the stream has only {len(names)}"
            raise UserError(message, code="too-few-domains")
        return tuple(name for name in names if self.then == "adapt" or name not in tested), tested

    def levels(self, benchmark: Benchmark) -> Severity:
        """The severity, or the severities that every domain goes through."""
        if self.severity == "benchmark":
            return benchmark.options.severity if benchmark.has_severities else None
        if not benchmark.has_severities:
            message = f"{self.name} goes through severities; {benchmark.name} has none: use another protocol"
            raise UserError(message, code="no-severities")
        if benchmark.options.severity != Options().severity:
            raise UserError(f"{self.name} chooses the severities itself: leave out --severity", code="option-conflict")
        return self.severity

    def visits(self, benchmark: Benchmark) -> list[Visit]:
        """Every visit of the stream of a benchmark, in order."""
        severity = self.levels(benchmark)
        return make_visits(*self.split(benchmark), severity, self.rounds)

    def stream(self, benchmark: Benchmark, batch_size: int | None = None) -> Stream:
        if self.sampling in ("dirichlet", "sorted") and benchmark.task != "classification":
            message = f"sampling {self.sampling} needs one label per image"
            raise UserError(f"{message}; {benchmark.name} is for {benchmark.task}", code="wrong-task")
        if not self.make_views().plain and benchmark.task != "segmentation":
            message = f"views and windows are for segmentation; {benchmark.name} is for {benchmark.task}"
            raise UserError(message, code="wrong-task")
        visits = self.visits(benchmark)
        segments = [Segment(benchmark.domain(v.name, v.severity), v.round, v.learn) for v in visits]
        sampling = Sampling(self.sampling, self.concentration, self.seed)
        return Stream(segments, benchmark.batch_size if batch_size is None else batch_size, sampling)

    def make_views(self) -> Views:
        """How the prediction that is scored looks at pictures."""
        return Views(self.views, _read_size(self.window), _read_size(self.stride))


def make_visits(domains: Sequence[str], held_out: Sequence[str], severity: Severity, rounds: int) -> list[Visit]:
    """Every visit of a stream, in order: the rounds over the domains, and the tests.

    Tests come at the end, or, of domains that are adapted to later on, before the first of these.
    """
    stations = [(name, number, True) for number in range(1, rounds + 1) for name in domains]
    fork = next((place for place, (name, _, _) in enumerate(stations) if name in held_out), len(stations))
    stations[fork:fork] = [(name, 1, False) for name in held_out]
    visits = []
    for place, (name, number, learn) in enumerate(stations):
        if severity == "gradual":
            levels: Iterable[int | None] = LATER_RAMP if place else FIRST_RAMP
        else:
            levels = severity if isinstance(severity, tuple) else (severity,)
        visits += [Visit(name, level, number, learn) for level in levels]
    return visits


def read_protocols(text: str | Path | Protocol) -> list[Protocol]:
    """Read a protocol: its name or TOML file, then `,key=value` as often as needed. Ten protocols for `order=all`."""
    if isinstance(text, Protocol):
        return [text]
    name, *pairs = str(text).split(",")
    if name.endswith(".toml"):
        base = {"name": Path(name).stem, **read_toml(Path(name), "protocol file")}
    else:
        base = {"name": name, **look_up("protocol", name, PROTOCOLS)}
    values = _convert({**base, **dict(_read_pair(pair) for pair in pairs)}, name)
    if values.get("order") != "all":
        return [Protocol(**values)]
    several = []
    for number in range(len(ORDERS)):
        own_name = f"order-{number}" if name == "orders" else values["name"]
        several.append(Protocol(**{**values, "order": number, "name": own_name}))
    return several


def read_protocol(text: str | Path | Protocol) -> Protocol:
    """Read a protocol that is one run."""
    protocol, *more = read_protocols(text)
    if more:
        remedy = "choose one, such as order=0"
        raise UserError(f"protocol {text} is {1 + len(more)} runs, one for each order: {remedy}", code="several-runs")
    return protocol


def _read_pair(pair: str) -> tuple[str, Any]:
    """Read `key=value`: a number if it is one, else a text."""
    key, equals, text = pair.partition("=")
    if not equals:
        example = "as in cyclic,rounds=5"
        raise UserError(f"a protocol takes options as key=value, {example}; got {pair!r}", code="wrong-option")
    for kind in (int, float):
        try:
            return key.strip(), kind(text)
        except ValueError:
            continue
    return key.strip(), text.strip()


def _read_size(text: str) -> Size | None:
    """Height and width of `HxW`; None for anything else."""
    found = re.fullmatch(r"([1-9]\d{0,4})x([1-9]\d{0,4})", text)
    return None if found is None else (int(found[1]), int(found[2]))


def _convert(values: Mapping[str, object], name: str) -> dict[str, Any]:
    """The values of a protocol as their declared types; one error has everything that is wrong with them."""
    known, phrases, found = field_types(Protocol), [], {}
    for key, value in values.items():
        try:
            check_keys([key], known)
            found[key] = check_value(known[key], key, value)
        except UserError as error:
            phrases.append(str(error))
    if phrases:
        raise UserError(f"protocol {name}: {'; '.join(phrases)}", code="wrong-protocol")
    return found
