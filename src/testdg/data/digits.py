"""The handwritten digits that come with scikit-learn: 1797 images of 8 x 8, shown as 32 x 32 RGB."""

from functools import cache

import torch
import torch.nn.functional as F

from testdg.data.stream import Samples

TRAIN_IMAGES = 1000
CLASSES = tuple("0123456789")


@cache
def load_digits() -> tuple[Samples, Samples]:
    """The first 1000 images for training and the last 797 for testing."""
    from sklearn import datasets

    pixels, labels = datasets.load_digits(return_X_y=True)
    small = torch.from_numpy(pixels).float().view(-1, 1, 8, 8) / 16
    large = F.interpolate(small, (32, 32), mode="bilinear", align_corners=False).clamp(0, 1)
    images = (large * 255).round().to(torch.uint8).expand(-1, 3, -1, -1).contiguous()
    targets = torch.from_numpy(labels).long()
    return (
        Samples(images[:TRAIN_IMAGES], targets[:TRAIN_IMAGES]),
        Samples(images[TRAIN_IMAGES:], targets[TRAIN_IMAGES:]),
    )
