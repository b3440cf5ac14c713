"""Where BatchNorm layers are aligned: each normalises by a mixture of the source, its memory and the batch at hand.

The statistics of a batch alone undo most of a corruption, and overshoot: the weights were trained with those of the
source, and a few images, or images of a few classes, say little about a domain. So the source always takes part. It
counts as `source` images for each image of the stream, and for two more.

The memory adds the last images of the stream, unless the batch is of another domain. What tells domains apart is how
each channel varies within an image. The gap is the squared distance between the batch and the memory in that (and in
the mean of each channel), in units of the variance between images. Of few images it is large by chance, so single
images are normalised without the memory where nothing is learnt.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from testdg.models.sites import Statistics

if TYPE_CHECKING:
    from testdg.models.alignment import Alignment

FAR = 0.5
"""Gap above which a batch begins a new domain while the stream is followed."""
NEAR = 0.1
"""Gap up to which a prediction outside the stream reads the memory in full; at twice that it reads nothing of it."""
LEAST = 10
"""Images below which a batch does not empty the memory while the stream is followed."""
FLOOR = 1e-3
"""What is added to the variance within an image, as a part of the source's variance (and `eps`)."""
BETWEEN, KNOWN = 0.3, 10.0
"""Variance between images before any is seen, and the number of images it then counts as."""


class NormSite(nn.Module):
    """Replaces the forward pass of a BatchNorm layer, whose own buffers stay the source's."""

    owner: Alignment
    layer: nn.BatchNorm2d

    def __init__(self, layer: nn.BatchNorm2d, memory: float, source: float, device: torch.device) -> None:
        super().__init__()
        self.memory, self.source = memory, source
        self.following = False
        """Whether passes move the memory."""
        channels = layer.num_features
        for name, width, start in (("pixels", channels, 1.0), ("images", 2 * channels, BETWEEN)):
            self.register_buffer(f"{name}_mean", torch.zeros(width, device=device))
            self.register_buffer(f"{name}_variance", torch.full((width,), start, device=device))
            self.register_buffer(f"{name}_images", torch.zeros((), device=device))

    def read(self, name: str) -> Statistics:
        """The memory: statistics of `pixels`, (C,), or of what `images` look like, (2 C,)."""
        return Statistics(*(self.get_buffer(f"{name}_{part}") for part in Statistics._fields))

    def write(self, name: str, values: Statistics) -> None:
        """Replace a part of the memory."""
        for old, new in zip(self.read(name), values, strict=True):
            old.copy_(new)

    def forward(self, images: Tensor) -> Tensor:
        """(N, C, H, W) to the same.

        The layer's own forward pass normalises by the source, and may do more, such as timm's with an activation. So
        images are shifted and scaled first, such that it normalises them by the mixture.
        """
        layer = self.layer
        assert layer.running_mean is not None
        assert layer.running_var is not None
        if self.owner.active:
            source = Statistics(layer.running_mean, layer.running_var, layer.running_mean.new_ones(()))
            with torch.no_grad():
                mean, variance = self._statistics(images.detach().float(), source)
                scale = ((source.variance + layer.eps) / (variance + layer.eps)).sqrt()
                shift = source.mean - mean * scale
            images = torch.addcmul(shift[..., None, None], images, scale[..., None, None]).to(images.dtype)
        return type(layer).forward(layer, images)

    def _statistics(self, images: Tensor, source: Statistics) -> tuple[Tensor, Tensor]:
        """Mean and variance to normalise by: (C,), or (N, C) where each image is predicted by itself."""
        within, means = torch.var_mean(images, (2, 3), correction=0)
        one = means.new_ones(())
        if self.owner.reads == "image":
            evidence = Statistics(means, within, one)
        else:
            variance, mean = torch.var_mean(means, 0, correction=0)
            batch = Statistics(mean, variance + within.mean(0), one * images.shape[0])
            floor = FLOOR * (source.variance + self.layer.eps)  # channels that are always 0 have no variance at all
            looks = torch.cat([means, (within + floor).log()], 1)
            variance, mean = torch.var_mean(looks, 0, correction=0)
            evidence = self._with_memory(batch, Statistics(mean, variance, batch.images))
        weight = self.source * (evidence.images + 2)
        mixed = evidence.with_(source._replace(images=weight), torch.inf)
        return mixed.mean, mixed.variance

    def _with_memory(self, batch: Statistics, looks: Statistics) -> Statistics:
        """The statistics of a batch, together with what the memory knows of the same domain."""
        pixels, known = self.read("pixels"), self.read("images")
        gap = ((looks.mean - known.mean).square() / known.variance.clamp(min=1e-6)).mean()
        if not self.following:
            trust = (2 - gap / NEAR).clamp(0, 1)
            return pixels._replace(images=pixels.images * trust).with_(batch, torch.inf)
        left = (gap > FAR) & (batch.images >= LEAST)
        evidence = pixels._replace(images=pixels.images * ~left).with_(batch, torch.inf)
        self.write("pixels", evidence._replace(images=evidence.images.clamp(max=self.memory)))
        begins = left | (known.images == 0)
        known = known._replace(mean=torch.where(begins, looks.mean, known.mean), images=known.images.clamp(min=KNOWN))
        self.write("images", known.with_(looks, max(self.memory, KNOWN)))
        return evidence
