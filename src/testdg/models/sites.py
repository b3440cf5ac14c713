"""Sites of alignment: tokens after a block of a transformer, and BatchNorm layers."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor, nn

from testdg.models.blocks import first, with_first

if TYPE_CHECKING:
    from testdg.models.alignment import Alignment

STRETCH = 2.0
"""Largest factor by which a deviation is stretched or shrunk."""
RECENT = 20.0
"""Number of recent images that are compared with the memory to detect a change; fewer would be noise."""
SHRINKAGE = 10.0
"""Number of source images of a class at which its measured offset gets half of its weight."""
FARTHEST = 0.4
"""Assumed gap of the farthest class, if no class of the source has enough images to measure it."""
FAR = 0.5
"""BatchNorm: gap above which a batch of the stream begins a new domain and clears the memory."""
NEAR = 0.1
"""BatchNorm: gap up to which a prediction outside the stream uses the full memory; at twice this gap it uses none."""
LEAST = 10
"""BatchNorm: least images of a batch of the stream that can clear the memory."""
FLOOR = 1e-3
"""Added to the variance within an image, as a share of the source's variance plus `eps`."""
BETWEEN, KNOWN = 0.3, 10.0
"""Assumed variance between images before any is seen, and its weight as a number of images."""


class Statistics(NamedTuple):
    """Mean and variance of some rows of channels, (K, D), over a number of images."""

    mean: Tensor
    variance: Tensor
    images: Tensor

    def with_(self, other: Statistics, most: float) -> Statistics:
        """Merge with other images, as if all had been seen together. Later merges count at most `most` of them."""
        total = self.images + other.images
        share = other.images / total
        gap = other.mean - self.mean
        variance = self.variance.lerp(other.variance, share) + share * (1 - share) * gap.square()
        return Statistics(self.mean + share * gap, variance, total.clamp(max=most))


class StatisticsModule(nn.Module):
    """A module with statistics under several names in its buffers."""

    def read(self, name: str) -> Statistics:
        return Statistics(*(self.get_buffer(f"{name}_{part}") for part in Statistics._fields))

    def write(self, name: str, values: Statistics) -> None:
        """Replace statistics in place."""
        for old, new in zip(self.read(name), values, strict=True):
            old.copy_(new)


class Site(StatisticsModule):
    """The alignment of tokens after one block: a shift and a stretch from the stream to the source.

    Its state is a few vectors: statistics of the `source`, the `stream` (the memory) and its `recent` images. They are
    changed in place, as recorded CUDA graphs require.
    """

    owner: Alignment
    offsets: Tensor
    unit: Tensor

    def __init__(self, width: int, rows: int, classes: int, device: torch.device) -> None:
        super().__init__()
        for name in ("source", "stream", "recent"):
            self.register_buffer(f"{name}_mean", torch.zeros(rows, width, device=device))
            self.register_buffer(f"{name}_variance", torch.ones(rows, width, device=device))
            self.register_buffer(f"{name}_images", torch.zeros((), device=device))
        self.register_buffer("offsets", torch.zeros(classes, rows, width, device=device))
        self.register_buffer("unit", torch.ones(width, device=device))  # unit of squared gaps
        self.seen: tuple[Tensor, Tensor] | None = None  # mean and variance in each image of the last pass
        self.batch = self.coming = self.read("stream")

    def after(self, _: nn.Module, __: object, output: Tensor | tuple[Tensor, ...]) -> Tensor | tuple[Tensor, ...]:
        """Forward hook of the block: measure its output, then align it."""
        tokens = first(output)
        self.seen = self._look(tokens.detach())
        return with_first(output, self._align(tokens)) if self.owner.active else output

    def _look(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and variance of the patches in each image; other tokens have variance 0. Both are (N, K, D)."""
        prefix = self.owner.prefix
        variance, mean = torch.var_mean(tokens[:, prefix:].float(), 1, correction=0, keepdim=True)
        if not self.owner.class_token:
            return mean, variance
        others = tokens[:, :prefix].float()
        return torch.cat([mean, others], 1), torch.cat([variance, torch.zeros_like(others)], 1)

    def _align(self, tokens: Tensor) -> Tensor:
        """Undo the shift and the stretch of the stream, in the precision of the tokens."""
        source, prefix = self.read("source"), self.owner.prefix
        stream = self._image_by_image() if self.owner.reads == "image" else self.read("stream")
        ratio = (source.variance.clamp(min=1e-12) / stream.variance.clamp(min=1e-12)).sqrt()
        scale = ratio.clamp(1 / STRETCH, STRETCH)
        shift = source.mean - stream.mean * scale
        patches = torch.addcmul(shift[..., :1, :], tokens[:, prefix:], scale[..., :1, :])
        if not prefix:
            return patches.to(tokens.dtype)
        others = tokens[:, :prefix]
        if self.owner.class_token:
            others = torch.addcmul(shift[..., 1:, :], others, scale[..., 1:, :])
        return torch.cat([others.to(tokens.dtype), patches.to(tokens.dtype)], 1)

    def _image_by_image(self) -> Statistics:
        """Statistics for each image alone, (N, K, D): its patches mixed with the source's; the source's tokens."""
        assert self.seen is not None
        source = self.read("source")
        one = torch.ones_like(source.images)
        both = source._replace(images=one).with_(Statistics(*self.seen, one), 2)
        patches = torch.arange(len(source.mean), device=one.device)[:, None] == 0
        return both._replace(
            mean=torch.where(patches, both.mean, source.mean),
            variance=torch.where(patches, both.variance, source.variance),
        )

    def measure(self, means: Tensor, variances: Tensor, shares: Tensor) -> None:
        """Compute the source's statistics from those of its images, (N, K, D), and their class shares, (N, C)."""
        counts = shares.sum(0)  # (C,)
        sums = torch.einsum("nc,nkd->ckd", shares, means) - counts[:, None, None] * means.mean(0)
        self.offsets.copy_(sums / (counts + SHRINKAGE)[:, None, None])
        self.write("source", self._statistics(means, variances, shares))
        between = means[:, 0].var(0, correction=0).clamp(min=1e-12)  # of patch means, between images
        self.unit.copy_(between * farthest_class(sums[:, 0], counts, between))

    def _statistics(self, means: Tensor, variances: Tensor, shares: Tensor) -> Statistics:
        """Statistics of some images, after subtracting what their classes explain (`offsets`)."""
        rest = means - torch.einsum("nc,ckd->nkd", shares, self.offsets)
        variance, mean = torch.var_mean(rest, 0, correction=0)
        return Statistics(mean, variance + variances.mean(0), mean.new_full((), means.shape[0]))

    def propose(self, shares: Tensor) -> None:
        """Compute what the last pass would add to the memory; a small batch is compared with recent images included."""
        assert self.seen is not None
        self.batch = self._statistics(*self.seen, shares)
        few = shares.shape[0] < RECENT
        self.coming = self.read("recent").with_(self.batch, RECENT) if few else self.batch

    def gap(self) -> Tensor:
        """How far recent patches are from the memory; 1 is as far as any class of the source is from all images."""
        return ((self.coming.mean[0] - self.read("stream").mean[0]).square() / self.unit).mean()

    def remember(self, changed: bool) -> None:
        """Add the proposal to the memory; in a new domain, the proposal replaces it."""
        stream = self.coming
        if not changed:
            stream = self.read("stream").with_(self.batch, self.owner.memory)
        self.write("stream", stream._replace(images=stream.images.clamp(max=self.owner.memory)))
        self.write("recent", self.coming)


def farthest_class(sums: Tensor, counts: Tensor, between: Tensor) -> Tensor:
    """Largest gap between a class with enough images and all images, minus the gap expected by chance.

    `sums`, (C, D), are the distances from the mean of all images, added up for each class; `between` is the variance
    between images.
    """
    gaps = ((sums / counts[:, None]).square() / between).mean(1) - 1 / counts
    known = torch.where(counts >= SHRINKAGE, gaps, 0.0)
    return torch.where(known.amax() > 0, known.amax(), FARTHEST).clamp(min=FARTHEST / 2)


class NormSite(StatisticsModule):
    """Replaces the forward pass of a BatchNorm layer; the buffers of the layer remain those of the source.

    The layer normalises by a mixture of the source, the memory and the batch. The statistics of a batch alone undo most
    of a corruption, but overshoot: the weights were trained with the source's statistics, and a few images, or images
    of a few classes, say little about a domain. So the source always takes part, with the weight of `source` images for
    each image of the stream and for two more.

    The memory adds the last images of the stream, unless the batch is of another domain. It has two parts. `pixels`,
    (C,), are the statistics to normalise by. `images`, (2 C,), recognise the domain: they are the mean of each channel,
    and the logarithm of its variance within an image. The gap is the squared distance between batch and memory in
    `images`, in units of the variance between images. For few images the gap is large by chance, so a single image that
    is only predicted is usually normalised without the memory.
    """

    owner: Alignment
    layer: nn.BatchNorm2d

    def __init__(self, layer: nn.BatchNorm2d, memory: float, source: float, device: torch.device) -> None:
        super().__init__()
        self.memory, self.source = memory, source
        self.following = False
        """Whether passes add their images to the memory."""
        channels = layer.num_features
        for name, width, start in (("pixels", channels, 1.0), ("images", 2 * channels, BETWEEN)):
            self.register_buffer(f"{name}_mean", torch.zeros(width, device=device))
            self.register_buffer(f"{name}_variance", torch.full((width,), start, device=device))
            self.register_buffer(f"{name}_images", torch.zeros((), device=device))

    def forward(self, images: Tensor) -> Tensor:
        """Normalise (N, C, H, W) by the mixture.

        The layer's own forward pass normalises by the source, and may do more: layers of timm add an activation. So the
        pass itself is not changed. Instead, images are shifted and scaled first, such that the result is the same as
        if the layer normalised by the mixture.
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
        """Mean and variance to normalise by: (C,), or (N, C) where each image is predicted alone."""
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
        """Merge the statistics of a batch with the memory, as far as both are of the same domain.

        Outside the stream, the weight of the memory falls with the gap. In the stream, a batch of another domain clears
        the memory, and every batch is added to it.
        """
        pixels, known = self.read("pixels"), self.read("images")
        gap = ((looks.mean - known.mean).square() / known.variance.clamp(min=1e-6)).mean()
        if not self.following:
            trust = (2 - gap / NEAR).clamp(0, 1)
            return pixels._replace(images=pixels.images * trust).with_(batch, torch.inf)
        left = (gap > FAR) & (batch.images >= LEAST)
        evidence = pixels._replace(images=pixels.images * ~left).with_(batch, torch.inf)
        self.write("pixels", evidence._replace(images=evidence.images.clamp(max=self.memory)))
        begins = left | (known.images == 0)
        mean = torch.where(begins, looks.mean, known.mean)
        known = known._replace(mean=mean, images=known.images.clamp(min=KNOWN))
        self.write("images", known.with_(looks, max(self.memory, KNOWN)))
        return evidence
