"""What each row of a leaderboard costs: time, memory and parameters of a batch, and the source images it needs."""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from testdg.evaluation import Result
from testdg.experiments.analyses.cost import latency, memory
from testdg.experiments.analyses.subject import Scene
from testdg.experiments.grid import Cell
from testdg.files import replace_text, writing
from testdg.methods import Adapter

FILE = "cost.json"
Costs = dict[str, dict[str, Any]]
"""By the folder of the run that was measured."""


def read_costs(folder: Path) -> Costs:
    """Costs that were measured before; none where there is no file that can be read."""
    try:
        found = json.loads((folder / FILE).read_text(encoding="utf-8"))
        return {str(name): dict(values) for name, values in found.items()}
    except (OSError, ValueError, TypeError, AttributeError):
        return {}


def measure_costs(
    runs: Sequence[tuple[Cell, Result]], folder: Path, tell: Callable[[str, int, int], Any] = lambda *_: None
) -> Costs:
    """Measure what is not known yet, one after the other, and keep it; nothing else should run meanwhile."""
    costs = read_costs(folder)
    for count, (cell, result) in enumerate(runs, 1):
        tell("measuring", count, len(runs))
        if result.folder.name not in costs:
            costs[result.folder.name] = measure(cell, result)
            with writing(folder):
                folder.mkdir(parents=True, exist_ok=True)
                replace_text(folder / FILE, json.dumps(costs, indent=1) + "\n")
    return costs


def measure(cell: Cell, result: Result) -> dict[str, Any]:
    """The cost of a method, as its run left it where that was kept, else from its start."""
    scene = Scene.open(cell)
    kept = (result.folder / "state").exists()

    def make() -> Adapter:
        return scene.adapted(result) if kept else scene.adapter()

    adapter = make()
    about: Mapping[str, Any] = {
        "device": scene.model.device.type,
        "batch_size": cell.batch_size,
        "parameters": sum(parameter.numel() for parameter in adapter.trainable().values()),
        "source_images": adapter.source_images(),
        "source_labels": bool(adapter.source_images()) and adapter.source_labels,
    }
    return {**about, **latency(make, scene.stream), "memory_mib": memory(make, scene.stream) / 2**20}
