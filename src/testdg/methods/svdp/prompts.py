"""SVDP's sparse prompts: offsets of single pixels, put where the prediction is most uncertain."""

import torch
import torch.nn.functional as F
from torch import Generator, Tensor, nn

from testdg.methods.parts.blocks import run_to_head
from testdg.models import VisionModel


class SparsePrompts(nn.Module):
    """One colour offset for each rank of uncertainty, in units of the model's standard deviation."""

    def __init__(self, count: int, channels: int, device: torch.device) -> None:
        super().__init__()
        self.offsets = nn.Parameter(torch.zeros(count, channels, device=device))

    def forward(self, images: Tensor, uncertainty: Tensor, std: Tensor) -> Tensor:
        """Add the offsets to images at the pixels with the largest uncertainty (N, H, W), the last to the largest."""
        flat = uncertainty.flatten(1)
        count = min(len(self.offsets), flat.shape[1])
        places = flat.topk(count, 1).indices.flip(1)[:, None].expand(-1, images.shape[1], -1)
        offsets = (self.offsets[-count:] * std.flatten()).T.expand_as(places)
        return images + torch.zeros_like(images.flatten(2)).scatter(2, places, offsets).view_as(images)


@torch.no_grad()
def dropout_uncertainty(
    model: VisionModel, images: Tensor, passes: int, dropout: float, generator: Generator
) -> Tensor:
    """How much the prediction of each pixel varies under dropout before the classifier, (N, H, W).

    That is the sum over the classes of the variance of their probability. The network before runs once.
    """
    features = run_to_head(model, images).features
    head = model.head_layer
    probabilities = []
    for _ in range(passes):
        kept = torch.rand(features.shape, generator=generator, device=images.device) >= dropout
        scores = head(features * kept / (1 - dropout)).float()
        probabilities.append(F.interpolate(scores, images.shape[-2:], mode="bilinear", align_corners=False).softmax(1))
    return variation(torch.stack(probabilities))


def variation(probabilities: Tensor) -> Tensor:
    """Sum over the classes of the variance over the passes, (passes, N, C, ...) to (N, ...)."""
    return probabilities.var(0, correction=0).sum(1)
