"""Experiments: grids of runs, the engines that run them, and their statistics."""

from testdg.experiments.bench import bench, prepare
from testdg.experiments.engine import Complete, Engine, Failed, News, Running
from testdg.experiments.expansion import expand
from testdg.experiments.grid import Cell, Grid
from testdg.experiments.local import Local
from testdg.experiments.ray_engine import Ray
from testdg.experiments.summary import BenchRow, BenchTable, summarise

__all__ = [
    "BenchRow",
    "BenchTable",
    "Cell",
    "Complete",
    "Engine",
    "Failed",
    "Grid",
    "Local",
    "News",
    "Ray",
    "Running",
    "bench",
    "expand",
    "prepare",
    "summarise",
]
