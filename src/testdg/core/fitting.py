"""The training loop: any loss, any optimiser, a learning rate that warms up and follows a cosine."""

import math
from collections.abc import Callable, Iterable

import torch
from torch import Tensor
from torch.optim import Optimizer

Step = Callable[[Tensor, Tensor], Tensor]
"""Returns the loss of a batch of images and labels."""


def fit(
    step: Step,
    optimizer: Optimizer,
    batches: Iterable[tuple[Tensor, Tensor]],
    *,
    steps: int,
    start: int = 0,
    clip: float | None = None,
    after: Callable[[int, Tensor], None] | None = None,
) -> None:
    """Minimise a loss over batches of images and labels, of which `batches` gives number `start` to the last.

    The optimiser's learning rates are the peaks of the schedule. `clip` bounds the norm of the gradient; `after` is
    called with the number of finished steps and the loss, which stays on its device.
    """
    peaks = [group["lr"] for group in optimizer.param_groups]
    with torch.inference_mode(False), torch.enable_grad():
        for number, (images, labels) in enumerate(batches, start):
            for group, peak in zip(optimizer.param_groups, peaks, strict=True):
                group["lr"] = peak * rate(number, steps)
            loss = step(images, labels)
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            if clip is not None:
                torch.nn.utils.clip_grad_norm_([p for g in optimizer.param_groups for p in g["params"]], clip)
            optimizer.step()
            if after is not None:
                after(number + 1, loss.detach())


def rate(step: int, steps: int) -> float:
    """Warm up over the first tenth, then follow a cosine down to zero."""
    return min(1.0, 10 * (step + 1) / steps) * (1 + math.cos(math.pi * step / steps)) / 2
