"""Figures of the analyses: each draws the numbers that `testdg.experiments.analyses` computes, and nothing else."""

import importlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from testdg.evaluation import Result
from testdg.experiments.analyses.stream import stream_numbers
from testdg.report.style import write_figure


def draw_analysis(name: str, numbers: dict[str, Any], path: Path, title: str, note: str = "") -> Path:
    """Draw the numbers of an analysis and write the figure, as PNG, PDF or SVG by its suffix."""
    module = importlib.import_module(f"testdg.report.analyses.{name}")
    return write_figure(lambda: module.draw(numbers, title, note), path)


def draw_stream(path: Path, runs: Mapping[str, Result], title: str, note: str = "") -> Path:
    """Draw the score of some runs over their stream."""
    numbers = stream_numbers({name: [result] for name, result in runs.items()})
    return draw_analysis("stream", numbers, path, title, note)
