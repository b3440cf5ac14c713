"""Training on source images before the stream."""

import math
from collections.abc import Callable, Iterable, Iterator
from itertools import chain, islice

import torch.nn.functional as F
from torch import Tensor
from torch.optim import Optimizer

from testdg.core.fitting import Step, fit
from testdg.data.segmentation.classes import IGNORED
from testdg.methods.parts.entropy import masked_mean


def train_on_source(
    step: Step,
    optimizer: Optimizer,
    batches: Iterable[tuple[Tensor, Tensor]],
    images: int,
    *,
    clip: float | None = None,
    begin: Callable[[Tensor], None] | None = None,
) -> None:
    """Minimise a loss over about this many source images, in batches as large as the first one.

    `clip` bounds the norm of the gradient: new layers in a trained network can have a very large one at first.
    `begin` gets the images of the first batch before anything is learnt.
    """
    source: Iterator[tuple[Tensor, Tensor]] = iter(batches)
    if (head := next(source, None)) is None:
        return
    if begin is not None:
        begin(head[0])
    steps = math.ceil(images / len(head[0]))
    fit(step, optimizer, islice(chain([head], source), steps), steps=steps, clip=clip)
    optimizer.zero_grad()


def supervised(predict: Callable[[Tensor], Tensor]) -> Step:
    """The loss of a step that only follows the labels."""
    return lambda images, labels: supervised_loss(predict(images), labels)


def supervised_loss(logits: Tensor, labels: Tensor, smoothing: float = 0.0) -> Tensor:
    """Cross-entropy with labels (N,), or with label maps (N, H, W) of any size; pixels without a class do not count."""
    logits = logits.float()
    if labels.ndim == 1:
        return F.cross_entropy(logits, labels, label_smoothing=smoothing)
    if labels.shape[1:] != logits.shape[2:]:
        logits = F.interpolate(logits, labels.shape[1:], mode="bilinear", align_corners=False)
    losses = F.cross_entropy(logits, labels.long(), ignore_index=IGNORED, label_smoothing=smoothing, reduction="none")
    return masked_mean(losses, labels != IGNORED)
