"""Predictions over several augmented views, and following a teacher."""

from collections.abc import Callable
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Generator, Tensor

from testdg.data.augmentation import Augmentation
from testdg.methods.parts.entropy import soft_cross_entropy, symmetric_cross_entropy

Following = Literal["soft", "symmetric", "hard"]


@torch.no_grad()
def over_views(
    predict: Callable[[Tensor], Tensor],
    images: Tensor,
    views: int,
    at_once: int,
    augment: Augmentation,
    generator: Generator,
) -> Tensor:
    """Logits of several augmented views, (views, N, C, ...); `at_once` of them share one pass.

    Views are drawn one after the other, so `at_once` changes time and memory, but no random number.
    """
    logits = []
    for start in range(0, views, at_once):
        count = min(at_once, views - start)
        batch = torch.cat([augment(images, generator) for _ in range(count)])
        logits.append(torch.unflatten(predict(batch), 0, (count, len(images))))
    return torch.cat(logits)


def following_loss(student: Tensor, taught: Tensor, label_form: Following = "soft") -> Tensor:
    """Mean cross-entropy of the student to the teacher's prediction: its soft label, both ways, or its class."""
    if label_form == "hard":
        return F.cross_entropy(student.float(), taught.argmax(1))
    losses = soft_cross_entropy if label_form == "soft" else symmetric_cross_entropy
    return losses(student, taught).mean()
