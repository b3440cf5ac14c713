"""Source: the model as it is. The reference point of every table."""

import torch
from torch import Tensor

from testdg.methods import Adapter, register


@register
class Source(Adapter):
    """Predict with the source model and learn nothing.

    Examples:
        >>> from testdg.evaluation import run
        >>> result = run("digits-c", "source", images=100, domains=["snow", "frost"])
        >>> print(f"error {result.mean_score:.1f} %")
        error 23.0 %
    """

    name = "source"
    title = "Source"
    citation = "no adaptation"
    tasks = ("classification", "segmentation")
    shares_batches = True

    def step(self, images: Tensor) -> Tensor:
        """Predict only."""
        with torch.no_grad():
            return self.infer(images)
