"""streets: drawn street scenes in fog, at night, in rain and in snow; nothing to download."""

from collections.abc import Sequence
from functools import cache

from torch import Tensor

from testdg.data.benchmarks.base import CorruptedImages, WeatherBenchmark, fingerprint, register
from testdg.data.stream import Domain, LabelledImages
from testdg.data.streets.scene import Scenes, draw_scenes
from testdg.data.streets.street import CLASSES, PALETTE
from testdg.data.weather import weather

TRAIN_IMAGES, TEST_IMAGES = 400, 100
_TRAIN_SEED, _TEST_SEED = 0, 1


@cache
def load_streets(seed: int, images: int) -> Scenes:
    """The first scenes of a seed; cached."""
    return draw_scenes(range(images), seed)


@register
class Streets(WeatherBenchmark):
    """Scenes of 96 x 160 px: 400 in clear weather for training, 100 others (by default) in each condition."""

    name = "streets"
    title = "drawn street scenes, 4 conditions (embedded)"
    classes = CLASSES
    palette = PALETTE
    batch_size = 4
    embedded = True
    has_severities = True

    @property
    def scenes(self) -> Scenes:
        """The scenes of the stream, in clear weather."""
        return load_streets(_TEST_SEED, self.options.images or TEST_IMAGES)

    def train(self) -> LabelledImages:
        scenes = load_streets(_TRAIN_SEED, TRAIN_IMAGES)
        return LabelledImages(scenes.images, scenes.labels)

    def test(self) -> LabelledImages:
        return LabelledImages(self.scenes.images, self.scenes.labels)

    def make_domain(self, name: str, severity: int) -> Domain:
        """Put the scenes into a condition, each with its own geometry."""
        images = CorruptedImages(self.test(), name, severity, self._corrupt, cache=self.cache)
        return Domain(name, severity, images, self.scenes.labels)

    def _corrupt(self, images: Tensor, name: str, severity: int, /, *, indices: Sequence[int]) -> Tensor:
        geometry, seed = self.scenes.geometry.take(indices), self.options.corruption_seed
        return weather(images, name, severity, indices=indices, seed=seed, geometry=geometry)

    def origin(self) -> str:
        return f"drawn, in weather made on the fly, seed {self.options.corruption_seed}"

    def fingerprint(self) -> str:
        return fingerprint([self.scenes.images, self.scenes.labels])
