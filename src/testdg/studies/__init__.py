"""Studies: grids of runs, engines that compute them, and tables and analyses of the results."""

from testdg.spec import RunSpec
from testdg.studies.engine import Complete, Engine, Failed, News, Running, bench, prepare
from testdg.studies.grid import Grid, expand
from testdg.studies.local import Local
from testdg.studies.ray import Ray
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
