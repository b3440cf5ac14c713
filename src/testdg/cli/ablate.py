"""`testdg ablate`: the paper's ablations, each a grid of runs of TestDG."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from testdg.cli.bench import BenchRequest, given_values, run_grid
from testdg.experiments.ablations import ABLATIONS, METHOD, find_ablation
from testdg.methods import find_method, parse_settings
from testdg.report.ablation import Layout


def ablate_command(name: str, request: BenchRequest, *, as_json: bool) -> bool:
    """Run an ablation and show its tables, or list all of them; False where a run failed."""
    if name == "list":
        list_ablations(as_json)
        return True
    ablation = find_ablation(name)
    grid = ablation.grid(given_values(request.lists, request.values), _settings(request.pairs))
    return run_grid(grid, request, Layout(ablation), as_json=as_json)


def list_ablations(as_json: bool) -> None:
    """Name, rows and title of every ablation."""
    if as_json:
        print(
            json.dumps([{"name": a.name, "title": a.title, "rows": list(a.rows)} for a in ABLATIONS.values()], indent=2)
        )
        return
    lines = ((ablation.name, f"{len(ablation.rows)} rows", ablation.title) for ablation in ABLATIONS.values())
    print("\n".join(f"{name:<18}{rows:<8}  {title}" for name, rows, title in lines))


def _settings(pairs: Sequence[str]) -> dict[str, Any]:
    """Settings of TestDG from KEY=VALUE; those of a bench, METHOD.KEY=VALUE, are understood too."""
    return parse_settings(find_method(METHOD).Settings, [pair.removeprefix(f"{METHOD}.") for pair in pairs])
