"""Runs for the tests of analyses."""

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
    """The runs of an analysis, one after the other in this process."""
    analysis = find_analysis(name)
    specs = expand(analysis.grid(values))
    needed, results = analysis.choose(specs, space), []
    for spec in specs:
        end = run_one(0, spec, out, lambda news: None) if spec in needed else None
        assert end is None or isinstance(end, Complete)
        results.append(end.result if isinstance(end, Complete) else None)
    return Subject(specs, results, runs=out, space=space)
