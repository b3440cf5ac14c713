"""Benchmarks of weather: streets in fog, at night, in rain and in snow, with a class for every pixel."""

from torch import Tensor

from testdg.data.benchmarks.base import Benchmark, letters
from testdg.data.segmentation.files import PairFiles
from testdg.data.weather import CONDITIONS, check_condition


class WeatherBenchmark(Benchmark):
    """Pictures of streets with label maps, in four conditions."""

    task = "segmentation"
    batch_size = 1
    protocol = "cyclic"
    own_domains = CONDITIONS

    def check_domain(self, name: str) -> None:
        """Refuse a condition that does not exist."""
        check_condition(name)


def identify(files: PairFiles) -> list[Tensor]:
    """What tells files from others: their names, and the first picture and label map."""
    return [letters([pair.name for pair in files.pairs]), files.images.take([0]), files.masks.take([0])]
