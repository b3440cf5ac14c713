"""Run folders as groups: in each, the results that may stand in one table."""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from testdg.runs import Result, comparable, differences
from testdg.runs.compare import grouped, same_but_for_order
from testdg.spec import SOURCE
from testdg.studies import BenchTable
from testdg.studies.rows import by_number, method_title, settings_of_row, titled_rows
from testdg.studies.summary import make_table

_LAST = "testdg"


@dataclass(frozen=True)
class Group:
    """A table of results that can be compared, with a title of its own."""

    title: str
    table: BenchTable
    apart: str = ""
    """Why it is not one with another group of the same benchmark and protocol."""


def make_groups(results: Sequence[Result]) -> list[Group]:
    """Put results that can be compared together; the order in which they come does not matter."""
    tables = [_table(home) for home in grouped(sorted(results, key=_place), _fits)]
    return [_group(table, tables) for table in tables]


def _place(result: Result) -> tuple[Any, ...]:
    about = result.record
    rank = (result.method["name"] != SOURCE, result.method["name"] == _LAST, method_title(result.method["name"]))
    rest = {key: value for key, value in about.items() if key not in ("seed", "tuning", "device")}
    return (
        about["benchmark"], about["kind"], json.dumps(rest, sort_keys=True), *rank,
        by_number(json.dumps(result.method, sort_keys=True)), json.dumps(about, sort_keys=True),
    )  # fmt: skip


def _fits(first: Result, other: Result) -> bool:
    """Whether two results belong in one table; several orders of one protocol do."""
    same = _protocol_name(first) == _protocol_name(other)
    return comparable(first, other) or (same and same_but_for_order(first, other))


def _protocol_name(result: Result) -> str:
    """The protocol's name; `order-0` to `order-9` are one."""
    return re.sub(r"^order-\d$", "orders", result.record["kind"])


def _table(results: Sequence[Result]) -> BenchTable:
    several = len({result.stream for result in results}) > 1
    name = _protocol_name(results[0]) if several else results[0].record["kind"]
    rows: dict[str, list[Result]] = {}
    for result in results:
        rows.setdefault(row_key(result), []).append(result)
    ordered = sorted(rows.values(), key=lambda row: _place(row[0])[3:])
    return make_table(name, results[0].record, titled_rows(ordered))


def row_key(result: Result) -> str:
    """What the results of a row have in common."""
    return json.dumps([result.method["name"], settings_of_row(result)], sort_keys=True)


def _group(table: BenchTable, tables: Sequence[BenchTable]) -> Group:
    """Number tables that share benchmark and protocol, and say why they are apart."""
    same = [one for one in tables if (one.benchmark, one.protocol) == (table.benchmark, table.protocol)]
    title, number, apart = f"{table.benchmark}, {table.protocol}", same.index(table), ""
    if number:
        found = differences(same[0].rows[0].results[0], table.rows[0].results[0])
        fields = ", ".join(key.replace("_", " ") for key in found)
        apart = f"Not comparable with {title} (1): other {fields}."
    return Group(title if len(same) == 1 else f"{title} ({number + 1})", table, apart)
