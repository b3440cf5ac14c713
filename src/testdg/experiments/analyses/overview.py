"""All benchmarks at a glance, from the run folders that are there."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from testdg.errors import UserError
from testdg.evaluation import Result, differences, read_result
from testdg.experiments.analyses.case import Case, Numbers
from testdg.experiments.statistics import spread, unusual
from testdg.methods import find_method, methods


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
    rows = [_row(runs, _name(runs[0], list(variants.values()))) for runs in variants.values()]
    rows.sort(key=lambda row: row["score"], reverse=first.metric.higher)
    protocol = {key: first.protocol[key] for key in ("benchmark", "kind", "model", "images_per_domain", "batch_size")}
    return {**protocol, "metric": first.metric._asdict(), "rows": rows}


def _settings(result: Result) -> dict[str, Any]:
    """What tells one variant from another; the seed does not."""
    return {"method": result.method["name"], **{k: v for k, v in result.method["settings"].items() if k != "seed"}}


def _name(result: Result, variants: Sequence[Sequence[Result]]) -> str:
    """The method's title, with the settings in which it is not like most variants of it."""
    method = result.method["name"]
    mine, title = _settings(result), find_method(method).title if method in methods() else str(method)
    others = [_settings(runs[0]) for runs in variants if runs[0].method["name"] == method]
    named = ", ".join(f"{key} {mine[key]}" for key in unusual(mine, others))
    return f"{title} ({named})" if named else title


def _row(found: Sequence[Result], name: str) -> Numbers:
    runs = list({run.protocol["seed"]: run for run in found}.values())  # the same run may be there twice
    values = [run.mean_score for run in runs if run.mean_score is not None]
    tested = [run.held_out_score for run in runs if run.held_out_score is not None]
    value = spread(values)
    held_out = spread(tested).mean if tested else None
    about = {"name": name, "method": runs[0].method["name"], "runs": len(runs)}
    return {**about, "score": value.mean, "deviation": value.deviation, "held_out": held_out}
