"""Corrupted sets by the name of their benchmark."""

from pathlib import Path

from testdg.data.benchmarks.base import Options
from testdg.data.benchmarks.corruption import corrupted_sets
from testdg.data.generate.arrays import write_arrays
from testdg.data.generate.folder import CorruptOptions, Tell
from testdg.data.generate.pictures import write_pictures
from testdg.data.picture_sets import PictureSet
from testdg.errors import UserError, look_up


def write_set(benchmark: str, data: Path, out: Path, images: int | None, options: CorruptOptions, tell: Tell) -> Path:
    """Make the set of a benchmark from its clean images, under the folder `out`; returns the folder of the set."""
    benchmark_class, data_set = look_up("corrupted data set", benchmark, corrupted_sets())
    if images is not None and images < 1:
        raise UserError(f"images must be at least 1; got {images}")
    if not data.is_dir():
        raise UserError(f"data folder {data} does not exist: expected a folder with clean images")
    folder = out / data_set.stored
    if isinstance(data_set, PictureSet):
        write_pictures(folder, data_set, data, images, options, tell)
    else:
        bench = benchmark_class(data, Options(images=images))
        write_arrays(folder, bench.clean, bench.frost, options, tell, data_set.parameters)
    return folder
