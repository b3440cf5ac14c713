"""`testdg ablate`: the paper's ablations, each a grid of runs of TestDG."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from testdg.cli.bench import run_grid
from testdg.cli.options import BenchOptions
from testdg.experiments.ablations import ABLATIONS, METHOD, find_ablation
from testdg.experiments.grid import read_settings
from testdg.report.bench import Layout


def ablate_command(
    name: str, values: Mapping[str, Any], pairs: Sequence[str], places: BenchOptions, *, as_json: bool
) -> bool:
    """Run an ablation and show its tables, or list all of them; False where a run failed."""
    if name == "list":
        list_ablations(as_json)
        return True
    ablation = find_ablation(name)
    grid = ablation.grid(values, read_settings(pairs, [METHOD]).get(METHOD, {}))
    return run_grid(grid, places, Layout(ablation.columns, ablation.published), as_json=as_json)


def list_ablations(as_json: bool) -> None:
    """Name, rows and title of every ablation."""
    if as_json:
        print(
            json.dumps([{"name": a.name, "title": a.title, "rows": list(a.rows)} for a in ABLATIONS.values()], indent=2)
        )
        return
    lines = ((ablation.name, f"{len(ablation.rows)} rows", ablation.title) for ablation in ABLATIONS.values())
    print("\n".join(f"{name:<18}{rows:<8}  {title}" for name, rows, title in lines))
