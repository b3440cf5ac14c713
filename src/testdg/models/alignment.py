"""Alignment: the statistics of a transformer's middle tokens are moved to those of the source images.

What a corruption does to a vision transformer is, for the most part, a shift and a stretch of the tokens in the middle of
it. After a few blocks, h' = (h - m) clip(s_src / s, 1/2, 2) + m_src, channel by channel, takes both out again: m, s are
the running mean and deviation of the stream, m_src, s_src those of clean source images. Patch tokens are described by
one mean over images and places, each class or register token by its own.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from testdg.errors import UserError

if TYPE_CHECKING:
    from testdg.models.model import VisionModel

Mode = Literal["off", "measure", "follow", "look", "hold"]
"""Pass on, measure the source, follow the stream, look at a batch without remembering it, use what is remembered."""
STRETCH = 2.0
"""The most that a deviation is stretched or shrunk by."""
RECENT = 20.0
"""Images that are held against the memory to notice a change; fewer would be noise."""
FILE = "alignment.safetensors"


class Statistics(NamedTuple):
    """Mean and variance of some rows of channels, (K, D), over a number of images."""

    mean: Tensor
    variance: Tensor
    images: Tensor

    def with_(self, other: Statistics, most: float) -> Statistics:
        """Merge with other images, as if all had been seen together; at most so many count in what follows."""
        total = self.images + other.images
        share = other.images / total
        gap = other.mean - self.mean
        variance = self.variance.lerp(other.variance, share) + share * (1 - share) * gap.square()
        return Statistics(self.mean + share * gap, variance, total.clamp(max=most))


def choose(condition: Tensor, one: Statistics, other: Statistics) -> Statistics:
    """One or the other, decided on the device."""
    return Statistics(*(torch.where(condition, a, b) for a, b in zip(one, other, strict=True)))


class Site(nn.Module):
    """What stands after one block. Its state is a handful of vectors, changed in place."""

    owner: Alignment

    def __init__(self, width: int, rows: int, device: torch.device) -> None:
        super().__init__()
        for name in ("source", "stream", "recent"):
            self.register_buffer(f"{name}_mean", torch.zeros(rows, width, device=device))
            self.register_buffer(f"{name}_variance", torch.ones(rows, width, device=device))
            self.register_buffer(f"{name}_images", torch.zeros((), device=device))
        self.register_buffer("between", torch.ones(width, device=device))  # variance of patch means between images

    def read(self, name: str) -> Statistics:
        """Statistics of the source, of the stream, or of its most recent images."""
        return Statistics(*(self.get_buffer(f"{name}_{part}") for part in Statistics._fields))

    def write(self, name: str, values: Statistics) -> None:
        """Put statistics into their place."""
        for old, new in zip(self.read(name), values, strict=True):
            old.copy_(new)

    def after(self, _: nn.Module, __: Any, output: Any) -> Any:
        """Align what a block gives: the hook."""
        tokens, mode = first(output), self.owner.mode
        if mode == "off":
            return output
        if mode == "measure":
            self._measure(tokens.detach().float())
            return output
        if mode == "hold":
            return with_first(output, self._align(tokens, self.read("stream")))
        with torch.no_grad(), torch.autocast(tokens.device.type, enabled=False):
            recent, stream = self._followed(tokens.detach().float())
            if mode == "follow":
                self.write("recent", recent)
                self.write("stream", stream)
        return with_first(output, self._align(tokens, stream))

    def _followed(self, tokens: Tensor) -> tuple[Statistics, Statistics]:
        """Recent and running statistics with a batch; after a change the recent ones are all that counts."""
        owner, batch = self.owner, self._describe(tokens)
        recent = self.read("recent").with_(batch, RECENT)
        recent = batch if len(tokens) >= RECENT else recent
        stream = self.read("stream")
        if self is owner.sites[0]:
            owner.notice(self._gap(recent, stream))
        return recent, choose(owner.changed, recent, stream.with_(batch, owner.memory))

    def _gap(self, recent: Statistics, stream: Statistics) -> Tensor:
        """How far recent patches are from the remembered ones; 1 is as far as two halves of one image's like."""
        return ((recent.mean[0] - stream.mean[0]).square() / self.between).mean()

    def _describe(self, tokens: Tensor) -> Statistics:
        """Statistics of a batch, (N, T, D)."""
        prefix, images = self.owner.prefix, tokens.new_full((), len(tokens))
        variance, mean = torch.var_mean(tokens[:, prefix:], (0, 1), correction=0)
        if not self.owner.class_token or not prefix:
            return Statistics(mean[None], variance[None], images)
        each = torch.var_mean(tokens[:, :prefix], 0, correction=0)  # (prefix, D)
        return Statistics(torch.cat([mean[None], each[1]]), torch.cat([variance[None], each[0]]), images)

    def _measure(self, tokens: Tensor) -> None:
        """Add source images to the sketch."""
        before = self.read("source")
        seen = before.with_(self._describe(tokens), float("inf"))
        means = tokens[:, self.owner.prefix :].mean(1)  # (N, D)
        spread = Statistics(before.mean[:1], self.between[None], before.images).with_(
            Statistics(*torch.var_mean(means, 0, correction=0, keepdim=True)[::-1], seen.images - before.images),
            float("inf"),
        )
        self.between.copy_(spread.variance[0])
        self.write("source", seen)

    def _align(self, tokens: Tensor, stream: Statistics) -> Tensor:
        """Undo the shift and the stretch of the stream, in the precision of the tokens."""
        source = self.read("source")
        ratio = (source.variance.clamp(min=1e-12) / stream.variance.clamp(min=1e-12)).sqrt()
        scale = ratio.clamp(1 / STRETCH, STRETCH)
        shift = source.mean - stream.mean * scale
        prefix = self.owner.prefix
        patches = torch.addcmul(shift[0], tokens[:, prefix:], scale[0])
        if not prefix:
            return patches.to(tokens.dtype)
        others = tokens[:, :prefix]
        if self.owner.class_token:
            others = torch.addcmul(shift[1:], others, scale[1:])
        return torch.cat([others, patches], 1).to(tokens.dtype)


class Alignment(nn.Module):
    """All sites of a model, and what they share. It belongs to the model as its weights do: copies have their own.

    A gap between recent images and the memory above the `threshold` is a new domain, and empties the memory.
    """

    def __init__(
        self,
        model: VisionModel,
        blocks: Sequence[str],
        *,
        prefix: int,
        class_token: bool = False,
        memory: float = 800.0,
        threshold: float = 0.5,
    ) -> None:
        super().__init__()
        self.blocks, self.prefix, self.class_token = list(blocks), prefix, class_token and prefix > 0
        self.memory, self.threshold = memory, threshold
        self.mode: Mode = "off"
        self.gap = self.changed = torch.zeros((), device=model.device)
        rows = 1 + (prefix if self.class_token else 0)
        layers = [model.network.get_submodule(name) for name in self.blocks]
        self.sites = nn.ModuleList(Site(width_of(layer), rows, model.device) for layer in layers)
        detach(model)
        for layer, site in zip(layers, self.sites, strict=True):
            site.__dict__["owner"] = self  # not a part of the site
            layer.register_forward_hook(site.after)  # type: ignore[arg-type]
        model.alignment = self

    def notice(self, gap: Tensor) -> None:
        """Decide, on the device, whether a batch begins a new domain."""
        self.gap, self.changed = gap, gap > self.threshold

    def begin(self, images: float) -> None:
        """Remember the source as if so many images of it had just been seen."""
        for site in self.sites:
            assert isinstance(site, Site)
            source = site.read("source")
            site.write("stream", source._replace(images=source.images.new_full((), images)))
            site.write("recent", source._replace(images=source.images.new_full((), RECENT)))

    @property
    def measured(self) -> int:
        """Number of source images in the sketch."""
        return int(self.sites[0].get_buffer("source_images"))

    def save(self, folder: Path) -> None:
        """Write it beside the weights of its model."""
        from safetensors.torch import save_file

        about = {"blocks": self.blocks, "prefix": self.prefix, "class_token": self.class_token}
        about |= {"memory": self.memory, "threshold": self.threshold}
        tensors = {name: value.detach().cpu().contiguous() for name, value in self.state_dict().items()}
        save_file(tensors, folder / FILE, {"alignment": json.dumps({**about, "mode": self.mode})})


def load_alignment(model: VisionModel, folder: Path) -> None:
    """Give a model the alignment that lies beside its weights."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(folder / FILE, "pt") as file:
            about = json.loads(file.metadata()["alignment"])
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        mode = about.pop("mode")
        alignment = Alignment(model, **about)
        alignment.load_state_dict(tensors)
        alignment.mode = mode
    except (OSError, SafetensorError, KeyError, TypeError, ValueError, AttributeError, RuntimeError) as error:
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        raise UserError(f"{folder / FILE} does not fit the model beside it: {reason}") from error


def detach(model: VisionModel) -> None:
    """Take the alignment of a model away."""
    for layer in model.network.modules():
        hooks = layer._forward_hooks
        for key in [key for key, hook in hooks.items() if isinstance(getattr(hook, "__self__", None), Site)]:
            del hooks[key]
    model.alignment = None


@contextmanager
def aligning(model: VisionModel, mode: Mode) -> Iterator[None]:
    """Align in a certain way in the passes within; a model without alignment is left alone."""
    alignment = model.alignment
    before = "off" if alignment is None else alignment.mode
    if alignment is not None:
        alignment.mode = mode
    try:
        yield
    finally:
        if alignment is not None:
            alignment.mode = before


def width_of(block: nn.Module) -> int:
    """Width of a transformer block's tokens: that of its first LayerNorm."""
    norm = next(layer for layer in block.modules() if isinstance(layer, nn.LayerNorm))
    return norm.normalized_shape[0]


def first(output: Any) -> Tensor:
    """The tensor that a block gives, alone or as the first of several."""
    return output[0] if isinstance(output, tuple) else output  # type: ignore[no-any-return]


def with_first(output: Any, value: Tensor) -> Any:
    """What a block gives, with another tensor in the place of the first."""
    return (value, *output[1:]) if isinstance(output, tuple) else value
