"""digits-c: handwritten digits under the fifteen standard corruptions; nothing to download."""

from testdg.data.benchmarks.corruption import CorruptionBenchmark
from testdg.data.benchmarks.registry import register
from testdg.data.digits import CLASSES, load_digits
from testdg.data.stream import Samples


@register
class DigitsC(CorruptionBenchmark):
    """The 797 test digits of scikit-learn, 32 x 32, corrupted on the fly."""

    name = "digits-c"
    title = "handwritten digits, 15 corruptions (embedded)"
    classes = CLASSES
    batch_size = 20
    embedded = True
    extras = ("frost",)

    def train(self) -> Samples:
        """The first 1000 digits."""
        return load_digits()[0]

    def test(self) -> Samples:
        """The last 797 digits."""
        return load_digits()[1]
