"""Views: the sizes at which a picture is looked at for the prediction that is scored, and windows that slide over it.

A method learns from one view, the whole picture as it is. With more views (or windows) the scored prediction is made
first, by `predict`, with the adapter as the batches before have left it; then the adapter learns as always, and what it
returns is not scored.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from testdg.methods import Adapter
from testdg.methods.parts.views import FOUR_RATIOS, RATIOS

Size = tuple[int, int]
"""Height and width."""
Predict = Callable[[Tensor], Tensor]
RATIOS_OF = {1: (1.0,), 2: (1.0,), 8: FOUR_RATIOS, 14: RATIOS}
"""Sizes of the views, by their number: each is there plain and mirrored, but for a single view."""


@dataclass(frozen=True)
class Views:
    """How the scored prediction is made: number of views, and height and width of windows and of their steps."""

    count: int = 1
    window: Size | None = None
    stride: Size | None = None

    @property
    def plain(self) -> bool:
        """Whether the prediction is that of the adapter, unchanged."""
        return self.count == 1 and self.window is None

    def describe(self) -> str:
        sizes = " ".join(f"{ratio:g}" for ratio in RATIOS_OF[self.count])
        words = "one" if self.count == 1 else f"{self.count} (sizes {sizes}, each plain and mirrored)"
        if self.window is None or self.stride is None:
            return words
        return words + " in windows of {} x {} px, stride {} x {}".format(*self.window, *self.stride)

    def predict(self, adapter: Adapter, images: Tensor, size: Size) -> Tensor:
        """Predict a batch and change nothing.

        Of one view, the logits; of several, the mean of their probabilities at `size`, that of the label maps.
        """
        return adapter.predict_by(lambda infer, prepared: self._look(infer, prepared, size), images)

    def _look(self, infer: Predict, images: Tensor, size: Size) -> Tensor:
        if self.count == 1:
            return self._logits(infer, images)
        total = torch.zeros((), device=images.device)
        for ratio in RATIOS_OF[self.count]:
            view = _at_size(images, (int(ratio * images.shape[-2]), int(ratio * images.shape[-1])))
            total = total + _at_size(self._logits(infer, view), size).softmax(1)
            total = total + _at_size(self._logits(infer, view.flip(-1)), size).softmax(1).flip(-1)
        return total / self.count

    def _logits(self, infer: Predict, view: Tensor) -> Tensor:
        if self.window is None or self.stride is None:
            return infer(view).float()
        return slide(infer, view, self.window, self.stride)


def slide(infer: Predict, images: Tensor, window: Size, stride: Size) -> Tensor:
    """Logits of windows that slide over images, averaged where they overlap; a smaller image is one window."""
    down, across = (_places(*sides) for sides in zip(images.shape[-2:], window, stride, strict=True))
    places = [(..., rows, columns) for rows in down for columns in across]
    found = [infer(images[place]).float() for place in places]
    total, count = images.new_zeros(*found[0].shape[:2], *images.shape[-2:]), images.new_zeros(images.shape[-2:])
    for place, logits in zip(places, found, strict=True):
        total[place] += logits
        count[place] += 1
    return total / count


def _places(length: int, window: int, stride: int) -> list[slice]:
    """Where windows lie along a side; the last one ends with it."""
    steps = max(0, -(-(length - window) // stride))
    ends = [min(step * stride + window, length) for step in range(steps + 1)]
    return [slice(max(0, end - window), end) for end in ends]


def _at_size(maps: Tensor, size: Size) -> Tensor:
    """Resize as the published pipelines do: bilinear, without antialiasing."""
    return maps if maps.shape[-2:] == size else F.interpolate(maps, size, mode="bilinear", align_corners=False)
