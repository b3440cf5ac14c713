"""All benchmarks at a glance, from the run folders that are there."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from testdg.errors import UserError
from testdg.runs import Result, comparable, read_result
from testdg.runs.compare import by_key, grouped
from testdg.studies.analyses.subject import Numbers, Subject
from testdg.studies.rows import method_title, settings_of_row, titled_rows
from testdg.studies.statistics import spread, unusual

MOST = 6  # variants of one method in a panel


def compute(subject: Subject) -> Numbers:
    """Mean scores of every method in every group of runs that can be compared; and what could not be read."""
    results, damaged = read_runs(subject.runs)
    return {"groups": [_about(group) for group in comparable_groups(results)], "damaged": damaged}


def read_runs(folder: Path) -> tuple[list[Result], list[str]]:
    """The results of all complete runs in a folder, and a sentence for each that is damaged."""
    results, damaged = [], []
    for place in sorted(path.parent for path in folder.glob("*/result.json")):
        try:
            results.append(read_result(place))
        except UserError as error:
            damaged.append(str(error))
    if not results:
        none = f"{folder} holds no complete runs: name their parent folder with --runs, or run a bench first"
        raise UserError("; ".join([none, *damaged]), code="no-runs")
    return results, damaged


def comparable_groups(results: Sequence[Result]) -> list[list[Result]]:
    """Runs that may stand in one table, together; the largest groups first."""
    return sorted(grouped(results, comparable), key=len, reverse=True)


def _about(group: Sequence[Result]) -> Numbers:
    first = group[0]
    variants = grouped(group, lambda one, other: _variant(one) == _variant(other))
    rows = [_row(runs, name) for name, runs in _few(titled_rows(variants))]
    rows.sort(key=lambda row: row["score"], reverse=first.metric.higher)
    keys = ("benchmark", "kind", "order", "model", "images_per_domain", "batch_size")
    about = {key: first.record[key] for key in keys}
    return {**about, "metric": first.metric.describe(), "rows": rows}


def _variant(result: Result) -> tuple[str, dict[str, Any]]:
    """What tells one variant from another; the seed does not."""
    return result.method["name"], settings_of_row(result)


def _few(rows: Sequence[tuple[str, list[Result]]]) -> list[tuple[str, list[Result]]]:
    """The variants of every method; of very many only the most usual one, and how many more there are."""
    kept = []
    for method, mine in by_key((row[1][0].method["name"], row) for row in rows).items():
        if len(mine) > MOST:
            settings = [settings_of_row(runs[0]) for _, runs in mine]
            usual = min(range(len(mine)), key=lambda number: len(unusual(settings[number], settings, method)))
            kept.append((f"{method_title(method)}, of {len(mine)} variants", mine[usual][1]))
        else:
            kept += mine
    return kept


def _row(found: Sequence[Result], name: str) -> Numbers:
    runs = list({run.record["seed"]: run for run in found}.values())  # the same run may be there twice
    values = [run.mean_score for run in runs if run.mean_score is not None]
    tested = [run.held_out_score for run in runs if run.held_out_score is not None]
    value = spread(values)
    held_out = spread(tested).mean if tested else None
    about = {"name": name, "method": runs[0].method["name"], "runs": len(runs)}
    return {**about, "score": value.mean, "deviation": value.deviation, "held_out": held_out}
