"""What the tests of several methods on segmentation models share."""

import dataclasses

from passes import segformer

from testdg.models import VisionModel

SEGMENTATION_CHECKS = [
    "reset is exact",
    "save, load, continue equals never stopped",
    "learning rate 0 is the source",
    "a batch of one and a short last batch",
    "only declared parameters move",
    "bf16 stays finite",
]
"""The laws that maps could break; a SegFormer is too slow for all of them."""


def any_size() -> VisionModel:
    """A SegFormer that takes images as they come."""
    model = segformer()
    model.preprocessing = dataclasses.replace(model.preprocessing, size=None)
    return model
