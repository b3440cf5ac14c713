"""The leaderboard: every method on the same streams, the best ones with more seeds and images."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from testdg.data.benchmarks import Benchmark
from testdg.errors import UserError, look_up
from testdg.runs import Result
from testdg.runs.compare import by_key, comparable, grouped
from testdg.runs.result import mean_of
from testdg.runs.scores import Metric
from testdg.spec import SOURCE, RunSpec
from testdg.studies.grid import Grid, expand
from testdg.studies.rows import method_title
from testdg.studies.summary import BenchRow, BenchTable, ScoreAndGain, make_table
from testdg.studies.tuning import chosen_preset
from testdg.studies.variants import Variant

IMAGES = 2000
_HELD_OUT = 5
_PREFIX = "leaderboard: "


@dataclass(frozen=True, kw_only=True)
class BoardStream:
    """A column of the leaderboard: how its stream differs from the first one."""

    name: str
    protocol: str
    share: float = 1.0
    """The share of the images of a domain that the stream shows; streams of many steps show fewer."""
    batch_size: int | None = None
    needs_severities: bool = False
    tasks: tuple[str, ...] = ("classification",)
    best_only: bool = False
    """Whether only the best methods run on it."""
    optional: bool = False
    """Whether it must be named with `--streams`; the mean leaves it out."""

    def fits(self, benchmark: Benchmark) -> bool:
        """Whether a benchmark has what the stream needs."""
        return benchmark.task in self.tasks and (benchmark.has_severities or not self.needs_severities)

    def values(self, images: int, domains: int) -> dict[str, Any]:
        """The values of a grid; if there are few domains, one is held out."""
        held_out = _HELD_OUT if domains > _HELD_OUT else 1
        chosen: dict[str, Any] = {"protocol": self.protocol.format(held_out=held_out)}
        chosen["images"] = max(1, round(self.share * images))
        if self.batch_size is not None:
            chosen["batch_size"] = self.batch_size
        return chosen


FIRST = "continual"
BOTH = ("classification", "segmentation")
STREAMS = (
    BoardStream(name=FIRST, protocol="held-out,held_out={held_out},then=adapt", tasks=BOTH),
    BoardStream(name="another order", protocol="order-1"),
    BoardStream(name="dirichlet", protocol="dirichlet"),
    BoardStream(name="three rounds", protocol="cyclic", share=0.5, tasks=BOTH),
    BoardStream(name="gradual", protocol="gradual,order=benchmark", share=0.1, needs_severities=True),
    BoardStream(name="batches of 10", protocol="continual", share=0.5, batch_size=10),
    BoardStream(name="single images", protocol="continual", share=0.1, batch_size=1, tasks=BOTH),
    BoardStream(name="five times longer", protocol="continual", share=5.0, tasks=BOTH, best_only=True),
    BoardStream(name="dirichlet 1", protocol="dirichlet,concentration=1", optional=True),
    BoardStream(name="dirichlet 0.01", protocol="dirichlet,concentration=0.01", optional=True),
    BoardStream(name="sorted", protocol="continual,sampling=sorted", optional=True),
    BoardStream(name="dirichlet batches of 10", protocol="dirichlet", share=0.5, batch_size=10, optional=True),
)
HELD_OUT = "held out"


@dataclass(frozen=True)
class StreamRun:
    """A run and the stream that it belongs to."""

    stream: str
    spec: RunSpec


def find_streams(names: str | None, benchmark: Benchmark) -> list[BoardStream]:
    """The streams of comma-separated names ("all" for all, None for those that are not optional) that fit a benchmark.

    They are in the order of `STREAMS`, and at least one of them is for all methods, which ranks the best.
    """
    known = {stream.name: stream for stream in STREAMS}
    if names is None:
        chosen = [stream for stream in STREAMS if not stream.optional]
    elif names.strip() == "all":
        chosen = list(STREAMS)
    else:
        chosen = [look_up("stream", name.strip(), known) for name in names.split(",")]
    fitting = [stream for stream in STREAMS if stream in chosen and stream.fits(benchmark)]
    if all(stream.best_only for stream in fitting):
        others = [stream.name for stream in STREAMS if stream.fits(benchmark) and not stream.best_only]
        message = f"--streams {names} has no stream for all methods: add one of {', '.join(others)}"
        raise UserError(message, code="no-streams")
    return fitting


def leaderboard_runs(
    variants: Sequence[Variant],
    benchmark: Benchmark,
    streams: Iterable[BoardStream],
    values: Mapping[str, Any],
    *,
    best: bool = False,
) -> list[StreamRun]:
    """The runs of some variants on some streams; with `best`, also on the streams for the best methods only."""
    name, shared = benchmark.name, {key: value for key, value in values.items() if key != "preset"}
    runs = tuple(_run(variant, name, values) for variant in variants)
    images, domains = values.get("images", IMAGES), len(benchmark.order)
    return [
        StreamRun(stream.name, spec)
        for stream in streams
        if best or not stream.best_only
        for spec in expand(Grid({**shared, **stream.values(images, domains)}, runs, _PREFIX + stream.name))
    ]


def _run(variant: Variant, benchmark: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """The table of a variant in a grid; without a file of chosen settings, with those published for the benchmark."""
    table = {"name": variant.title, "method": variant.method, "settings": dict(variant.fixed)}
    if "tuned" not in values or "preset" in values:
        table["preset"] = chosen_preset(variant, benchmark, values)
    return table


@dataclass(frozen=True)
class Ranked:
    """A row of the board on one or several streams."""

    name: str
    method: str
    rows: Mapping[str, BenchRow]

    def score(self, stream: str) -> ScoreAndGain | None:
        """The score on a stream, or on the held-out domains of the first."""
        if stream == HELD_OUT:
            return self.rows[FIRST].held_out if FIRST in self.rows else None
        return self.rows[stream].adapted if stream in self.rows else None

    def mean(self, streams: Sequence[str]) -> float | None:
        """The mean over streams; None where one is missing."""
        scores = [self.score(stream) for stream in streams]
        return mean_of([None if score is None else score.value.mean for score in scores])

    def worst(self, streams: Sequence[str]) -> tuple[float, str] | None:
        """The smallest gain over Source on any stream, and the stream; a loss is below zero."""
        gains = []
        for stream in streams:
            score = self.score(stream)
            if score is not None and score.gain is not None:
                gains.append((score.gain.mean, stream))
        return min(gains, default=None)

    @property
    def first(self) -> Result:
        """Its run with the lowest seed on the first stream that it was run on."""
        row = next(iter(self.rows.values()))
        return min(row.results, key=lambda result: int(result.record["seed"]))


@dataclass(frozen=True)
class Board:
    """All rows, the best mean over the streams first, with the tables of each stream."""

    tables: Mapping[str, BenchTable]
    ranked: Sequence[Ranked]

    @property
    def metric(self) -> Metric:
        return next(iter(self.tables.values())).metric

    @property
    def streams(self) -> list[str]:
        """Streams of the mean: those that all methods run on, with the held-out domains after the first."""
        streams = [name for name in self.tables if name not in self.others]
        if FIRST in streams and all(row.held_out for row in self.tables[FIRST].rows):
            streams.insert(streams.index(FIRST) + 1, HELD_OUT)
        return streams

    @property
    def others(self) -> list[str]:
        """Streams that the mean leaves out: those for the best methods only, and the optional ones."""
        return [one.name for one in STREAMS if one.name in self.tables and (one.best_only or one.optional)]


def best_of(board: Board, count: int) -> list[str]:
    """The names of the methods that are best on the first stream of the board, without Source."""
    first = next(iter(board.tables))
    rows = [row for row in board.ranked if row.method != SOURCE and first in row.rows]
    sign = -1 if board.metric.higher else 1
    return [row.name for row in sorted(rows, key=lambda row: sign * row.rows[first].adapted.value.mean)[:count]]


def make_board(runs: Iterable[tuple[str, str, Result]]) -> Board:
    """The board of runs, each with its stream and the name of its row.

    Of the runs on a stream, the largest group that can be compared is used.
    """
    found = by_key((stream, (row, result)) for stream, row, result in runs)
    streams = [stream.name for stream in STREAMS if stream.name in found]
    tables = {name: _table(name, found[name]) for name in streams}
    by_row: dict[str, dict[str, BenchRow]] = {}
    for name, table in tables.items():
        for row in table.rows:
            by_row.setdefault(row.name, {})[name] = row
    ranked = [Ranked(name, next(iter(rows.values())).method, rows) for name, rows in by_row.items()]
    board = Board(tables, ranked)
    return Board(tables, sorted(ranked, key=lambda row: _place(row, board)))


def _place(row: Ranked, board: Board) -> tuple[bool, float]:
    """The sort key of a row: by the mean; rows that lack a stream come last, by their score on the first stream."""
    mean, first = row.mean(board.streams), row.score(next(iter(board.tables)))
    value = mean if mean is not None else first.value.mean if first is not None else 0.0
    return mean is None, -value if board.metric.higher else value


def _table(stream: str, runs: Sequence[tuple[str, Result]]) -> BenchTable:
    """The largest group of runs on a stream that can be compared."""
    largest = max(grouped(runs, lambda one, other: comparable(one[1], other[1])), key=len)
    return make_table(stream, largest[0][1].record, by_key(largest).items())


def row_entry(stream: str, place: int, name: str) -> dict[str, tuple[int, str]]:
    """The entry that names the row of a stored run; `stored_runs` reads it."""
    return {_PREFIX + stream: (place, name)}


def stored_runs(results: Iterable[Result]) -> list[tuple[str, str, Result]]:
    """Stream, row and result of the stored runs of leaderboards; a run of several leaderboards counts once."""
    found = {}
    for result in results:
        for bench, (_, row) in result.rows.items():
            if bench.startswith(_PREFIX):
                stream, name = bench.removeprefix(_PREFIX), str(row) or method_title(result.method["name"])
                found[stream, name, result.folder.name] = result
    return [(stream, name, result) for (stream, name, _), result in found.items()]
