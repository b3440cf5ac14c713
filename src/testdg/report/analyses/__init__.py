"""Figures of the analyses: each draws the numbers that `testdg.studies.analyses` computes, and nothing else."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from testdg.report.analyses import scores, spaces
from testdg.report.analyses.stream import draw_curves
from testdg.report.style import write_figure
from testdg.runs import Result
from testdg.studies.analyses.stream import stream_numbers

_DRAW = {
    "attention": spaces.draw_attention,
    "cost": scores.draw_cost,
    "drift": spaces.draw_drift,
    "embeddings": spaces.draw_embeddings,
    "gap": spaces.draw_gap,
    "overview": scores.draw_overview,
    "parameters": scores.draw_parameters,
    "probes": spaces.draw_probes,
    "prototypes": spaces.draw_prototypes,
    "stream": draw_curves,
}


def draw_analysis(name: str, numbers: dict[str, Any], path: Path, title: str, note: str = "") -> Path:
    """Draw the numbers of an analysis and write the figure, as PNG, PDF or SVG by its suffix."""
    return write_figure(lambda: _DRAW[name](numbers, title, note), path)


def draw_stream(path: Path, runs: Mapping[str, Result], title: str, note: str = "") -> Path:
    """Draw the score of some runs over their stream."""
    numbers = stream_numbers({name: [result] for name, result in runs.items()})
    return draw_analysis("stream", numbers, path, title, note)
