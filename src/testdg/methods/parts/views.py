"""Predictions over several views, augmented, or of several sizes and mirrored; and following a teacher."""

from collections.abc import Callable, Sequence
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from testdg.methods.parts.entropy import soft_cross_entropy, symmetric_cross_entropy
from testdg.models import Output

Following = Literal["soft", "symmetric", "hard"]
RATIOS = (0.5, 0.75, 1.0, 1.25, 1.5, 1.75, 2.0)
"""Sizes at which CoTTA looks at a street scene."""
FOUR_RATIOS = (0.5, 1.0, 1.5, 2.0)
"""Sizes at which BECoTTA and its EcoTTA baseline look at one."""

Predict = Callable[[Tensor], Output]


@torch.no_grad()
def over_views(predict: Callable[[Tensor], Tensor], draw: Callable[[], Tensor], views: int, at_once: int) -> Tensor:
    """Logits of several views of the same images, (views, N, C, ...); `at_once` of them share one pass.

    Views are drawn one after the other, so `at_once` changes time and memory, but no random number.
    """
    logits = []
    for start in range(0, views, at_once):
        count = min(at_once, views - start)
        batch = torch.cat([draw() for _ in range(count)])
        logits.append(torch.unflatten(predict(batch), 0, (count, -1)))
    return torch.cat(logits)


def following_loss(student: Tensor, taught: Tensor, label_form: Following = "soft") -> Tensor:
    """Mean cross-entropy of the student to the teacher's prediction: its soft label, both ways, or its class."""
    if label_form == "hard":
        return F.cross_entropy(student.float(), taught.argmax(1))
    losses = soft_cross_entropy if label_form == "soft" else symmetric_cross_entropy
    return losses(student, taught).mean()


@torch.no_grad()
def multiscale_probabilities(model: Predict, images: Tensor, ratios: Sequence[float] = RATIOS) -> tuple[Tensor, Tensor]:
    """Probabilities of each pixel, (N, C, H, W): of the images as they are, and the mean over all views.

    Every ratio has two views, one of them mirrored; one of the ratios is 1.
    """
    plain = view_probabilities(model, images, 1.0, False)
    total = plain.clone()
    for ratio in ratios:
        for flip in (False, True):
            if ratio != 1 or flip:
                total += view_probabilities(model, images, ratio, flip)
    return plain, total / (2 * len(ratios))


def view_probabilities(model: Predict, images: Tensor, ratio: float, flip: bool) -> Tensor:
    """Probabilities of one view, back at the size and the orientation of the images."""
    height, width = images.shape[-2:]
    view = images
    if ratio != 1:
        view = F.interpolate(view, (round(ratio * height), round(ratio * width)), mode="bilinear", antialias=ratio < 1)
    logits = model(view.flip(-1) if flip else view).logits.float()
    logits = F.interpolate(logits, (height, width), mode="bilinear").softmax(1)
    return logits.flip(-1) if flip else logits


def sure_pixels(source: Predict, images: Tensor, threshold: float) -> Tensor:
    """Which pixels the source is surer of than a threshold, (N, 1, H, W)."""
    return source(images).logits.float().softmax(1).amax(1, keepdim=True) > threshold


def choose_pixels(sure: Tensor, plain: Tensor, mean: Tensor) -> Tensor:
    """Log-probabilities of each pixel: of the plain view where `sure` (N, 1, H, W), else of the mean over views."""
    return torch.where(sure, plain, mean).clamp(min=1e-12).log()
