"""Source: the model as it is. The reference point of every table."""

import torch
from torch import Tensor

from testdg.methods import Adapter, register


@register
class Source(Adapter):
    """Predict with the source model and learn nothing."""

    name = "source"
    title = "Source"
    citation = "no adaptation"
    example_error = 23.0
    tasks = ("classification", "segmentation")
    learns = False

    def step(self, images: Tensor) -> Tensor:
        with torch.no_grad():
            return self.infer(images)
