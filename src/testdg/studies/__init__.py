"""Studies: grids of runs, the engines that run them, and what they show together."""

from testdg.spec import RunSpec
from testdg.studies.engine import Complete, Engine, Failed, News, Running, bench, prepare
from testdg.studies.grid import Grid, expand
from testdg.studies.local import Local
from testdg.studies.ray_engine import Ray
from testdg.studies.summary import BenchRow, BenchTable, summarise

__all__ = [
    "BenchRow",
    "BenchTable",
    "Complete",
    "Engine",
    "Failed",
    "Grid",
    "Local",
    "News",
    "Ray",
    "RunSpec",
    "Running",
    "bench",
    "expand",
    "prepare",
    "summarise",
]
