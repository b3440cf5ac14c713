"""Ablations of TestDG: small declarations over a grid, with the numbers that the paper prints for them."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from testdg.errors import UserError, look_up
from testdg.runs.events import Entry, count_changes, mean_diagnostic
from testdg.runs.folder import read_events
from testdg.studies.grid import Grid
from testdg.studies.summary import BenchRow, Spread, spread

Values = Mapping[str, Any]
METHOD = "testdg"


class Column(NamedTuple):
    """An additional column of an ablation's table: a number from the events of each run."""

    title: str
    key: str
    measure: Callable[[Sequence[Entry]], float | None]
    digits: int

    def value(self, row: BenchRow) -> Spread | None:
        """The mean over the runs of a row, and its spread; None if a run has no such number."""
        values = [self.measure(read_events(result.folder)) for result in row.results]
        known = [value for value in values if value is not None]
        return spread(known) if len(known) == len(values) else None


CHANGES = Column("changes", "changes", count_changes, 1)
MMD2 = Column("MMD²", "prototype_mmd2", lambda events: mean_diagnostic(events, "prototype_mmd2"), 4)


class Published(NamedTuple):
    """Numbers of the paper, in a table of their own, as they are of another model and another stream."""

    where: str
    columns: tuple[str, ...]
    rows: Mapping[str, tuple[float, ...]]

    @property
    def heading(self) -> str:
        return f"published, ViT-B/16 on CIFAR-10-C: other model, other stream ({self.where})"

    def cells(self) -> list[list[str]]:
        """The texts of the table, titles first, with the digits of the paper."""
        rows = ([name, *(f"{v:.1f}" if v >= 1 else f"{v:.4f}" for v in values)] for name, values in self.rows.items())
        return [["", *self.columns], *rows]


@dataclass(frozen=True, kw_only=True)
class Ablation:
    """Rows that change some settings of TestDG."""

    name: str
    title: str
    rows: Mapping[str, Values]
    protocols: tuple[str, ...] = ()
    """Default protocols; empty for the benchmark's own."""
    columns: tuple[Column, ...] = (CHANGES,)
    published: Published | None = None

    def grid(self, values: Values, settings: Values) -> Grid:
        """The grid of all rows; `values` are those of a grid, `settings` hold for every row."""
        varied = {key for row in self.rows.values() for key in row}
        if taken := sorted(varied & settings.keys()):
            message = f"ablation {self.name} varies {taken[0]}: leave out --set {taken[0]}"
            raise UserError(message, code="setting-varied")
        runs = tuple({"name": name, "settings": dict(row)} for name, row in self.rows.items())
        default = {"protocol": list(self.protocols)} if self.protocols else {}
        fixed = {"method": METHOD, "settings": {METHOD: dict(settings)}}
        return Grid({**default, **values, **fixed}, runs, f"ablation {self.name}")


def find_ablation(name: str) -> Ablation:
    return look_up("ablation", name, ABLATIONS)


def _sweep(key: str, values: Iterable[Any]) -> dict[str, Values]:
    return {f"{key} {value}": {key: value} for value in values}


_NOTHING = {
    "invariance": False,
    "discrimination": False,
    "selection": "fifo",
    "prototype_update": False,
    "amplifier": True,
}
_STEPS: list[tuple[str, Values]] = [
    ("L_self", {}),
    ("+ L_inv", {"invariance": True}),
    ("+ L_dis", {"discrimination": True}),
    ("+ selection", {"selection": "mmd"}),
    ("+ update (TestDG)", {"prototype_update": True}),
    ("without amplifier", {"amplifier": False}),
]


def _errors(where: str, errors: Mapping[str, float]) -> Published:
    """A table of the paper that has only errors."""
    return Published(where, ("error, %",), {name: (error,) for name, error in errors.items()})


def _cumulative() -> dict[str, Values]:
    """Rows that each add one change to the row above."""
    rows: dict[str, Values] = {}
    now: dict[str, Any] = dict(_NOTHING)
    for name, change in _STEPS:
        now = {**now, **change}
        rows[name] = now
    return rows


_ALL = [
    Ablation(
        name="components",
        title="losses, selection and update added one by one; then the amplifier removed",
        rows=_cumulative(),
        published=_errors(
            "table of components",
            {
                "Source": 28.2,
                "L_self": 18.0,
                "+ L_inv": 10.5,
                "+ L_dis": 8.3,
                "+ selection": 8.0,
                "+ update (TestDG)": 7.7,
                "without amplifier": 21.9,
            },
        ),
    ),
    Ablation(
        name="amplifier",
        title="with and without the domain amplifier",
        rows={"without amplifier": {"amplifier": False}, "with amplifier": {"amplifier": True}},
        published=_errors("table of components", {"without amplifier": 21.9, "with amplifier": 7.7}),
    ),
    Ablation(
        name="threshold",
        title="jump of the confidence that means a new domain",
        rows=_sweep("threshold", (0.02, 0.05, 0.1, 0.15, 0.2, 0.4, 0.6, 0.8)),
        published=_errors(
            "extended ablation; below 0.4 the paper has a figure without numbers",
            {"threshold 0.4": 8.1, "threshold 0.6": 8.3, "threshold 0.8": 8.1},
        ),
    ),
    Ablation(
        name="queue",
        title="length of the queue of embeddings",
        rows=_sweep("queue_length", (64, 128, 256, 512, 1024, 2048, 8192, 16384, 32768)),
        published=_errors(
            "extended ablation; up to 2048 the paper has a figure without numbers",
            {"queue_length 8192": 8.1, "queue_length 16384": 8.0, "queue_length 32768": 8.1},
        ),
    ),
    Ablation(
        name="prototypes", title="number of domain prototypes", rows=_sweep("prototypes", (10, 20, 40, 60, 80, 100))
    ),
    Ablation(
        name="distance",
        title="distance that the prototype update preserves",
        rows=_sweep("distance", ("mmd", "hausdorff", "chamfer")),
        published=_errors(
            "table of distances", {"distance mmd": 8.2, "distance hausdorff": 8.1, "distance chamfer": 7.7}
        ),
    ),
    Ablation(
        name="previous_domains",
        title="previous domains whose prototypes are stored, on the stream and on held-out domains",
        rows=_sweep("previous_domains", (1, 3, 5)),
        protocols=("continual", "held-out"),
        published=Published(
            "table of previous domains",
            ("error, %", "held out, %"),
            {"previous_domains 1": (7.7, 11.8), "previous_domains 3": (8.3, 12.7), "previous_domains 5": (8.2, 13.1)},
        ),
    ),
    Ablation(
        name="selection",
        title="how prototypes are chosen, and how well they represent the queue",
        rows=_sweep("selection", ("fifo", "random", "reservoir", "mmd")),
        columns=(CHANGES, MMD2),
        published=Published(
            "table of selection strategies",
            ("error, %", "MMD²"),
            {
                "selection fifo": (8.8, 0.0256),
                "selection random": (8.6, 0.0248),
                "selection reservoir": (8.4, 0.0251),
                "selection mmd": (7.7, 0.0216),
            },
        ),
    ),
]
ABLATIONS = {ablation.name: ablation for ablation in _ALL}
