"""The common image corruptions of Hendrycks and Dietterich (2019), batched, on any device."""

from testdg.data.corruptions.apply import corrupt, corrupt_uint8
from testdg.data.corruptions.generator import ImageNoise
from testdg.data.corruptions.parameters import (
    CIFAR,
    EXTRA,
    IMAGENET,
    SEVERITIES,
    STANDARD_ORDER,
    TINY_IMAGENET,
    ParameterSet,
)
from testdg.data.corruptions.textures import FrostTextures

__all__ = [
    "CIFAR",
    "EXTRA",
    "IMAGENET",
    "SEVERITIES",
    "STANDARD_ORDER",
    "TINY_IMAGENET",
    "FrostTextures",
    "ImageNoise",
    "ParameterSet",
    "corrupt",
    "corrupt_uint8",
]
