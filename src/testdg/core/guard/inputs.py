"""Is an image worth learning from? Constant and saturated images, repeated frames and pure noise are not."""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from testdg.core.graphs import Recorded

FLAT = 0.003
"""Deviation of all pixels below which an image is one colour: less than a step of eight bits."""
SATURATED = 0.98
"""Share of pixels at one end of the scale above which an image shows nothing."""
UNRELATED = 0.1
"""Correlation of neighbouring pixels, along both axes, below which an image is noise."""
SAME = 0.05
"""Largest difference of two thumbnails, in deviations of their pixels, below which two images are the same frame."""
THUMBNAIL = 8
USED_PIXELS = 128
"""Pixels along the shorter side that are used; of larger images, only every second, third, ... pixel."""
RECENT = 64
"""Number of earlier images that an image is compared with."""
NOTHING = -1.0
"""Value of missing thumbnails: far from every image."""
REASONS = (
    ("one-colour", "one colour"),
    ("saturated", "nearly all pixels at one end of the scale"),
    ("noise", "noise: neighbouring pixels have nothing in common"),
    ("same-frame", "the same frame again"),
)
"""Codes and reasons."""


class Look(NamedTuple):
    """What a look at a batch shows: what speaks against each image, in the order of `REASONS`, and its values."""

    flags: list[list[bool]]
    low: float
    high: float


class Inputs(nn.Module):
    """Looks at images before they are learnt from; remembers thumbnails of the last ones."""

    thumbnails: Tensor
    before: Tensor

    def __init__(self, channels: int = 3) -> None:
        super().__init__()
        self.register_buffer("thumbnails", torch.full((RECENT, channels * THUMBNAIL**2), NOTHING))
        self.register_buffer("before", self.thumbnails.clone(), persistent=False)
        self._recorded = Recorded(self._numbers, copies=False)

    @torch.no_grad()
    def look(self, images: Tensor) -> Look:
        """Look at a batch, and remember its images."""
        *flags, low, high = self._recorded(None, images)["numbers"].tolist()
        rows = [list(map(bool, flags[start : start + len(REASONS)])) for start in range(0, len(flags), len(REASONS))]
        return Look(rows, low, high)

    def forget_last(self) -> None:
        """Forget the images of the last batch."""
        self.thumbnails.copy_(self.before)

    def clear(self) -> None:
        """Forget all images."""
        self.thumbnails.fill_(NOTHING)

    def _numbers(self, images: Tensor) -> dict[str, Tensor]:
        """Everything that a look shows, for one transfer to the host."""
        every = -(-min(images.shape[-2:]) // USED_PIXELS)
        seen = images[..., ::every, ::every].float()
        deviation = _deviation(seen.flatten(1))
        ends = torch.stack([(seen <= 1 / 255), (seen >= 254 / 255)]).flatten(2).float().mean(2).amax(0)
        related = torch.stack([neighbours(seen, axis, deviation) for axis in (-1, -2)]).abs().amax(0)
        flags = torch.stack([deviation < FLAT, ends > SATURATED, related < UNRELATED, self._repeated(seen)], 1)
        return {"numbers": torch.cat([flags.flatten().float(), torch.stack(torch.aminmax(images)).float()])}

    def _repeated(self, images: Tensor) -> Tensor:
        """Whether each image was seen before, in this batch or in the last ones."""
        thumbnails = F.adaptive_avg_pool2d(images, THUMBNAIL).flatten(1)
        known = torch.cat([self.thumbnails, thumbnails])
        gaps = torch.cdist(thumbnails, known, p=float("inf"))
        later = torch.ones_like(gaps, dtype=torch.bool).triu(RECENT)  # itself, and what comes after it
        own = _deviation(thumbnails).clamp(min=FLAT)
        self.before.copy_(self.thumbnails)
        self.thumbnails.copy_(known[-RECENT:])
        return ((gaps < SAME * own[:, None]) & ~later).any(1)


def _deviation(rows: Tensor) -> Tensor:
    """Standard deviation of each row; several times faster than `std`."""
    return (rows.square().mean(1) - rows.mean(1).square()).clamp(min=0).sqrt()


def neighbours(images: Tensor, axis: int, deviation: Tensor) -> Tensor:
    """Correlation of each pixel with the next one along an axis, image by image: (N,)."""
    if images.shape[axis] < 3:
        return torch.ones_like(deviation)
    return 1 - images.diff(dim=axis).square().flatten(1).mean(1) / (2 * deviation.square().clamp(min=1e-12))
