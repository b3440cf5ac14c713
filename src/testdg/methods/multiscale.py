"""Predictions of a segmentation model over several sizes of the same images, each also mirrored."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from testdg.models import VisionModel

RATIOS = (0.5, 0.75, 1.0, 1.25, 1.5, 1.75, 2.0)
"""Sizes at which CoTTA looks at a street scene."""


@torch.no_grad()
def multiscale_probabilities(model: VisionModel, images: Tensor) -> tuple[Tensor, Tensor]:
    """Probabilities of each pixel, (N, C, H, W): of the images as they are, and the mean over all fourteen views."""
    plain = view_probabilities(model, images, 1.0, False)
    total = plain.clone()
    for ratio in RATIOS:
        for flip in (False, True):
            if ratio != 1 or flip:
                total += view_probabilities(model, images, ratio, flip)
    return plain, total / (2 * len(RATIOS))


def view_probabilities(model: VisionModel, images: Tensor, ratio: float, flip: bool) -> Tensor:
    """Probabilities of one view, back at the size and the orientation of the images."""
    height, width = images.shape[-2:]
    view = images
    if ratio != 1:
        view = F.interpolate(view, (round(ratio * height), round(ratio * width)), mode="bilinear", antialias=ratio < 1)
    logits = model(view.flip(-1) if flip else view).logits.float()
    logits = F.interpolate(logits, (height, width), mode="bilinear").softmax(1)
    return logits.flip(-1) if flip else logits
