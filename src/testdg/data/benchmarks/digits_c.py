"""digits-c: the handwritten digits of scikit-learn under the fifteen standard corruptions; nothing to download."""

from functools import cache

import torch
import torch.nn.functional as F

from testdg.data.benchmarks.base import register
from testdg.data.benchmarks.corruption import CorruptionBenchmark
from testdg.data.stream import LabelledImages

_TRAIN_IMAGES = 1000


@cache
def load_digits() -> tuple[LabelledImages, LabelledImages]:
    """The first 1000 images for training and the last 797 for testing: 8 x 8, shown as 32 x 32 RGB."""
    from sklearn import datasets

    pixels, labels = datasets.load_digits(return_X_y=True)
    small = torch.from_numpy(pixels).float().view(-1, 1, 8, 8) / 16
    large = F.interpolate(small, (32, 32), mode="bilinear", align_corners=False).clamp(0, 1)
    images = (large * 255).round().to(torch.uint8).expand(-1, 3, -1, -1).contiguous()
    targets = torch.from_numpy(labels).long()
    train = LabelledImages(images[:_TRAIN_IMAGES], targets[:_TRAIN_IMAGES])
    return train, LabelledImages(images[_TRAIN_IMAGES:], targets[_TRAIN_IMAGES:])


@register
class DigitsC(CorruptionBenchmark):
    """The 797 test digits of scikit-learn, 32 x 32, corrupted on the fly."""

    name = "digits-c"
    title = "handwritten digits, 15 corruptions (embedded)"
    classes = tuple("0123456789")
    batch_size = 20
    embedded = True
    extras = ("frost",)

    def train(self) -> LabelledImages:
        return load_digits()[0]

    def test(self) -> LabelledImages:
        return load_digits()[1]
