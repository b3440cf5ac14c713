"""Experiments: grids of runs, the engines that run them, and their statistics."""

from testdg.studies.bench import bench, prepare
from testdg.studies.engine import Complete, Engine, Failed, News, Running
from testdg.studies.expansion import expand
from testdg.studies.grid import Cell, Grid
from testdg.studies.local import Local
from testdg.studies.ray_engine import Ray
from testdg.studies.summary import BenchRow, BenchTable, summarise

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
