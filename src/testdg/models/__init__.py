"""Models: any torch network seen as encoder + head."""

from testdg.models.loading import load_model, register_model
from testdg.models.model import Output, VisionModel
from testdg.models.preprocessing import Preprocessing
from testdg.models.segformer import SegmentationModel
from testdg.models.tiny import TinyCNN, TinyViT

__all__ = [
    "Output",
    "Preprocessing",
    "SegmentationModel",
    "TinyCNN",
    "TinyViT",
    "VisionModel",
    "load_model",
    "register_model",
]
