"""All benchmarks at a glance, from the run folders that are there."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from testdg.errors import UserError
from testdg.evaluation import Result, differences, read_result
from testdg.experiments.analyses.case import Case, Numbers
from testdg.experiments.statistics import settings_of, spread, unusual
from testdg.methods import find_method, methods

MOST = 6  # variants of one method in a panel


def compute(case: Case) -> Numbers:
    """Mean scores of every method in every group of runs that can be compared."""
    return {"groups": [_about(group) for group in comparable_groups(read_runs(case.runs))]}


def read_runs(folder: Path) -> list[Result]:
    """The results of all complete runs in a folder."""
    places = sorted(path.parent for path in folder.glob("*/result.json"))
    if not places:
        raise UserError(f"{folder} holds no complete runs: name their parent folder with --runs, or run a bench first")
    return [read_result(place) for place in places]


def comparable_groups(results: Sequence[Result]) -> list[list[Result]]:
    """Runs that may stand in one table, together; the largest groups first."""
    groups: list[list[Result]] = []
    for result in results:
        home = next((group for group in groups if not differences(group[0], result)), None)
        if home is None:
            groups.append([result])
        else:
            home.append(result)
    return sorted(groups, key=len, reverse=True)


def _about(group: Sequence[Result]) -> Numbers:
    first = group[0]
    variants: dict[str, list[Result]] = {}
    for result in group:
        variants.setdefault(json.dumps(_settings(result), sort_keys=True), []).append(result)
    every = list(variants.values())
    rows = [row for name in dict.fromkeys(_method(runs) for runs in every) for row in _rows(name, every)]
    rows.sort(key=lambda row: row["score"], reverse=first.metric.higher)
    keys = ("benchmark", "kind", "order", "model", "images_per_domain", "batch_size")
    protocol = {key: first.protocol[key] for key in keys}
    return {**protocol, "metric": first.metric.describe(), "rows": rows}


def _method(runs: Sequence[Result]) -> str:
    return str(runs[0].method["name"])


def _rows(method: str, variants: Sequence[Sequence[Result]]) -> list[Numbers]:
    """The variants of a method; of very many only the most usual one, and how many more there are."""
    mine = [runs for runs in variants if _method(runs) == method]
    if len(mine) <= MOST:
        return [_row(runs, _name(runs[0], mine)) for runs in mine]
    usual = min(mine, key=lambda runs: len(_unusual(runs[0], mine)))
    return [_row(usual, f"{_name(usual[0], mine)}, of {len(mine)} variants")]


def _settings(result: Result) -> dict[str, Any]:
    """What tells one variant from another; the seed does not."""
    return {"method": result.method["name"], **settings_of(result.method)}


def _unusual(result: Result, variants: Sequence[Sequence[Result]]) -> list[str]:
    return unusual(_settings(result), [_settings(runs[0]) for runs in variants], result.method["name"])


def _name(result: Result, variants: Sequence[Sequence[Result]]) -> str:
    """The method's title, with the settings in which it is not like most variants of it."""
    method = result.method["name"]
    title = find_method(method).title if method in methods() else str(method)
    named = ", ".join(f"{key} {_settings(result)[key]}" for key in _unusual(result, variants))
    return f"{title} ({named})" if named else title


def _row(found: Sequence[Result], name: str) -> Numbers:
    runs = list({run.protocol["seed"]: run for run in found}.values())  # the same run may be there twice
    values = [run.mean_score for run in runs if run.mean_score is not None]
    tested = [run.held_out_score for run in runs if run.held_out_score is not None]
    value = spread(values)
    held_out = spread(tested).mean if tested else None
    about = {"name": name, "method": runs[0].method["name"], "runs": len(runs)}
    return {**about, "score": value.mean, "deviation": value.deviation, "held_out": held_out}
