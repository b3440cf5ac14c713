"""Ablations of TestDG: `ablations.toml` has their rows, and the numbers that the paper prints for them."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from msgspec import Struct

from testdg.errors import UserError, look_up
from testdg.files import read_toml
from testdg.runs.events import Entry, count_changes, mean_diagnostic
from testdg.runs.folder import read_events
from testdg.studies.grid import Grid
from testdg.studies.summary import BenchRow, Spread, spread

METHOD = "testdg"


class EventColumn(NamedTuple):
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


_MMD2 = "prototype_mmd2"
_COLUMNS = {
    "changes": EventColumn("changes", "changes", count_changes, 1),
    _MMD2: EventColumn("MMD²", _MMD2, lambda events: mean_diagnostic(events, _MMD2), 4),
}


class PublishedRows(Struct, frozen=True, kw_only=True):
    """Numbers of the paper, in a table of their own, as they are of another model and another stream."""

    where: str
    columns: tuple[str, ...] = ("error, %",)
    rows: dict[str, tuple[float, ...]]

    @property
    def heading(self) -> str:
        return f"published, ViT-B/16 on CIFAR-10-C: other model, other stream ({self.where})"

    def cells(self) -> list[list[str]]:
        """The texts of the table, titles first, with the digits of the paper."""
        cells = [["", *self.columns]]
        for name, values in self.rows.items():
            cells.append([name, *(f"{value:.1f}" if value >= 1 else f"{value:.4f}" for value in values)])
        return cells


class Ablation(Struct, frozen=True, kw_only=True):
    """Rows that change some settings of TestDG."""

    name: str
    title: str
    rows: dict[str, dict[str, Any]]
    protocols: tuple[str, ...] = ()
    """Default protocols; empty for the benchmark's own."""
    columns: tuple[str, ...] = ("changes",)
    published: PublishedRows | None = None

    @property
    def event_columns(self) -> tuple[EventColumn, ...]:
        return tuple(_COLUMNS[key] for key in self.columns)

    def grid(self, values: Mapping[str, Any], settings: Mapping[str, Any]) -> Grid:
        """The grid of all rows; `values` are those of a grid, `settings` hold for every row."""
        varied = {key for row in self.rows.values() for key in row}
        if taken := sorted(varied & settings.keys()):
            message = f"ablation {self.name} varies {taken[0]}: leave out --set {taken[0]}"
            raise UserError(message, code="setting-varied")
        runs = tuple({"name": name, "settings": row} for name, row in self.rows.items())
        default = {"protocol": list(self.protocols)} if self.protocols else {}
        fixed = {"method": METHOD, "settings": {METHOD: dict(settings)}}
        return Grid({**default, **values, **fixed}, runs, f"ablation {self.name}")


def _read_ablations() -> dict[str, Ablation]:
    tables = read_toml(Path(__file__).with_suffix(".toml"), "ablations")
    for name, table in tables.items():
        table["name"] = name
        for key, values in table.pop("sweep", {}).items():
            table["rows"] = {f"{key} {value}": {key: value} for value in values}
    return msgspec.convert(tables, dict[str, Ablation])


ABLATIONS = _read_ablations()


def find_ablation(name: str) -> Ablation:
    return look_up("ablation", name, ABLATIONS)
