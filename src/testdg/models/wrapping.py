"""Any network becomes a `VisionModel`."""

from torch import nn

from testdg.models.heads import find_head
from testdg.models.model import VisionModel
from testdg.models.preprocessing import Preprocessing
from testdg.models.segformer import SegmentationModel


def wrap(network: nn.Module, preprocessing: Preprocessing, head: str | None, name: str) -> VisionModel:
    """See a network as encoder + head."""
    if is_segformer(network):
        return SegmentationModel(network, head or "decode_head.classifier", preprocessing, name).eval()
    found = find_head(network.eval(), preprocessing, name, head)
    model = VisionModel(network, found.name, preprocessing, name, classes=found.classes, exact=found.exact)
    return model.eval()


def is_segformer(network: nn.Module) -> bool:
    """Tell a SegFormer for segmentation by its parts."""
    return hasattr(network, "segformer") and hasattr(network, "decode_head")
