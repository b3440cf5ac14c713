"""Data and generators for tests of training."""

import torch

from testdg.data.benchmarks.streets import Streets
from testdg.data.stream import LabelledImages
from testdg.data.streets.scene import draw_scenes


class SmallStreets(Streets):
    """Eight scenes to learn from and three for the test, at half their size."""

    def train(self) -> LabelledImages:
        return self._draw(range(8), 0)

    def test(self) -> LabelledImages:
        return self._draw(range(3), 1)

    def _draw(self, numbers: range, seed: int) -> LabelledImages:
        scenes = draw_scenes(numbers, seed)
        return LabelledImages(scenes.images[..., ::2, ::2], scenes.labels[:, ::2, ::2])


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)
