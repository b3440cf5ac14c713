"""Is an image worth learning from? Constant, saturated, repeated frames and pure noise are not."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

FLAT = 0.003
"""Deviation of all pixels below which an image is one colour: less than a step of eight bits."""
SATURATED = 0.98
"""Share of pixels at one end of the scale above which an image shows nothing."""
UNRELATED = 0.1
"""Correlation of neighbouring pixels, along both axes, below which an image is noise."""
SAME = 0.05
"""Largest difference of two thumbnails, in deviations of their pixels, below which two images are the same frame."""
THUMBNAIL = 8
LOOKED_AT = 128
"""Pixels along the shorter side that are looked at; of larger images every second, third, ... one."""
RECENT = 64
"""Images before this one that it is compared with."""
REASONS = (
    "one colour",
    "nearly all pixels at one end of the scale",
    "noise: neighbouring pixels have nothing in common",
    "the same frame again",
)


class Inputs(nn.Module):
    """Looks at images before they are learnt from; remembers thumbnails of the last ones."""

    thumbnails: Tensor | None

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("thumbnails", None)

    @torch.no_grad()
    def look(self, images: Tensor) -> Tensor:
        """What speaks against each image, as flags in the order of `REASONS`: (N, 4). The images are remembered."""
        every = -(-min(images.shape[-2:]) // LOOKED_AT)
        images = images[..., ::every, ::every].float()
        deviation = _deviation(images.flatten(1))
        ends = torch.stack([(images <= 1 / 255), (images >= 254 / 255)]).flatten(2).float().mean(2).amax(0)
        related = torch.stack([neighbours(images, axis, deviation) for axis in (-1, -2)]).abs().amax(0)
        return torch.stack([deviation < FLAT, ends > SATURATED, related < UNRELATED, self._repeated(images)], 1)

    def _repeated(self, images: Tensor) -> Tensor:
        """Whether each image was there before, in this batch or in the last ones."""
        thumbnails = F.adaptive_avg_pool2d(images, THUMBNAIL).flatten(1)
        kept = self.thumbnails
        before = thumbnails[:0] if kept is None or kept.shape[1] != thumbnails.shape[1] else kept
        gaps = torch.cdist(thumbnails, torch.cat([before, thumbnails]), p=float("inf"))
        later = torch.ones_like(gaps, dtype=torch.bool).triu(len(before))  # itself, and what comes after it
        own = _deviation(thumbnails).clamp(min=FLAT)
        self.thumbnails = torch.cat([before, thumbnails])[-RECENT:]
        return ((gaps < SAME * own[:, None]) & ~later).any(1)

    def forget(self) -> None:
        """Begin anew."""
        self.thumbnails = None


def _deviation(rows: Tensor) -> Tensor:
    """Standard deviation of each row; several times as fast as `std`."""
    return (rows.square().mean(1) - rows.mean(1).square()).clamp(min=0).sqrt()


def neighbours(images: Tensor, axis: int, deviation: Tensor) -> Tensor:
    """Correlation of each pixel with the next one along an axis, image by image: (N,)."""
    if images.shape[axis] < 3:
        return torch.ones_like(deviation)
    return 1 - images.diff(dim=axis).square().flatten(1).mean(1) / (2 * deviation.square().clamp(min=1e-12))
