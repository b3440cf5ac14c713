"""Cells for the tests of analyses."""

from pathlib import Path
from typing import Any

from testdg.studies import Complete, expand
from testdg.studies.analyses import Subject, find_analysis
from testdg.studies.engine import run_one

ALARMS = {"threshold": 0.0}  # every batch but the first is a change


def choices(model: Path) -> dict[str, Any]:
    """A short stream with a change after every batch."""
    domains = ["fog", "contrast", "snow"]
    shared = {"model": str(model), "device": "cpu", "images": 8, "batch_size": 4, "domains": domains}
    return {**shared, "method": "testdg", "settings": {"testdg": {**ALARMS, "prototypes": 3}}}


def subject(name: str, values: dict[str, Any], out: Path, space: str = "embeddings") -> Subject:
    """The cells of an analysis, run here, one after the other."""
    analysis = find_analysis(name)
    cells = expand(analysis.grid(values))
    wanted, results = analysis.choose(cells, space), []
    for cell in cells:
        end = run_one(0, cell, out, lambda news: None) if cell in wanted else None
        assert end is None or isinstance(end, Complete)
        results.append(end.result if isinstance(end, Complete) else None)
    return Subject(cells, results, runs=out, space=space)
