"""Alignment: tokens in the middle of a transformer are moved from the statistics of the stream to the source's.

The main effect of a corruption on a vision transformer is a shift and a stretch of its middle tokens. After a few
blocks, h' = (h - m) clip(s_src / s, 1/2, 2) + m_src, channel by channel, undoes both: m, s are the running mean and
deviation of the stream, m_src, s_src those of clean source images. Patch tokens share one mean over images and places;
class and register tokens have one each.

A batch of one class has another mean without any change of domain. So the part that its predicted classes explain is
subtracted from an image before it enters the statistics: the mean of that class in the source minus the mean of all.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import torch
from safetensors import safe_open
from torch import Tensor, nn

from testdg.errors import UserError
from testdg.models.blocks import holding, save_tensors, tensors_of, width_of
from testdg.models.sites import RECENT, NormSite, Site, Statistics
from testdg.models.untrusted import first_line

if TYPE_CHECKING:
    from testdg.models.model import Output, VisionModel

CERTAIN = 3.0
"""Gap that is always a new domain: in a distant domain, wrong predictions can be confident."""
PASSES = 2
"""Passes with the statistics of a new domain: those of later sites are exact only after earlier sites are aligned."""
FILE = "alignment.safetensors"
Reads = Literal["memory", "batch", "image"]
_SETTINGS = ["blocks", "prefix", "class_token", "memory", "threshold", "reads", "norms", "norm_memory", "norm_source"]


class Alignment(nn.Module):
    """All sites of a model. It belongs to the model like weights: every copy of the model has its own.

    A gap between recent images and the memory above `threshold` is a new domain, which clears the memory. A prediction
    `reads` the memory; or the memory unless the batch is of another domain, then the batch's own statistics; or the
    statistics of each image alone.
    """

    def __init__(
        self,
        model: VisionModel,
        blocks: Sequence[str],
        *,
        prefix: int,
        class_token: bool,
        memory: float,
        threshold: float = 1.0,
        reads: Reads = "memory",
        norms: Sequence[str] = (),
        norm_memory: float = 0.0,
        norm_source: float = 0.0,
    ) -> None:
        super().__init__()
        self.blocks, self.prefix, self.class_token = list(blocks), prefix, class_token and prefix > 0
        self.memory, self.threshold, self.reads = memory, threshold, reads
        self.active = True
        rows = 1 + (prefix if self.class_token else 0)
        layers = [model.network.get_submodule(name) for name in self.blocks]
        sites = [Site(width_of(layer), rows, model.classes, model.device) for layer in layers]
        self.sites = nn.ModuleList(sites)
        self.norms, self.norm_memory, self.norm_source = list(norms), norm_memory, norm_source
        detach(model)
        self.norm_sites = nn.ModuleList()
        for name in self.norms:
            layer = model.network.get_submodule(name)
            assert isinstance(layer, nn.BatchNorm2d)
            norm_site = NormSite(layer, norm_memory, norm_source, model.device)
            norm_site.__dict__.update(owner=self, layer=layer)  # not parts of the site
            layer.__dict__["forward"] = norm_site.forward
            self.norm_sites.append(norm_site)
        for layer, site in zip(layers, sites, strict=True):
            site.__dict__["owner"] = self  # not a part of the site
            layer.register_forward_hook(site.after)
        model.alignment = self

    def follow(self) -> AbstractContextManager[None]:
        """Context in which BatchNorm layers add the images of passes to their memory."""
        return holding(self.norm_sites, "following", True, usual=False)

    def _each(self) -> list[Site]:
        return [site for site in self.sites if isinstance(site, Site)]

    @torch.no_grad()
    def measure(self, run: Callable[[Tensor], Output], batches: Iterable[Tensor], begin: float) -> None:
        """Measure the source; the memory starts as if `begin` images of it had just been seen."""
        seen: list[list[tuple[Tensor, Tensor]]] = [[] for _ in self.sites]
        shares = []
        self.active = False
        try:
            for batch in batches:
                shares.append(class_shares(run(batch).logits))
                for site, statistics in zip(self._each(), seen, strict=True):
                    assert site.seen is not None
                    statistics.append(site.seen)
        finally:
            self.active = True
        for site, statistics in zip(self._each(), seen, strict=True):
            means, variances = (torch.cat(parts) for parts in zip(*statistics, strict=True))
            site.measure(means, variances, torch.cat(shares))
            source = site.read("source")
            site.write("stream", source._replace(images=source.images.new_full((), begin)))
            site.write("recent", source._replace(images=source.images.new_full((), RECENT)))

    @torch.no_grad()
    def propose(self, logits: Tensor) -> Tensor:
        """Compute what the last pass, with these predictions, adds to the memory. Returns the gap, on the device."""
        with torch.autocast(logits.device.type, enabled=False):
            shares = class_shares(logits)
            for site in self._each():
                site.propose(shares)
            return self._each()[0].gap() if self.sites else logits.new_zeros(())

    def proposal(self) -> dict[str, Tensor]:
        """What was proposed, as a flat dict, which can be the output of a CUDA graph."""
        return {
            f"{number}.{name}.{part}": value
            for number, site in enumerate(self._each())
            for name, statistics in (("batch", site.batch), ("coming", site.coming))
            for part, value in statistics._asdict().items()
        }

    def take_proposal(self, proposal: Mapping[str, Tensor]) -> None:
        """Restore what `proposal` returned."""
        for number, site in enumerate(self._each()):
            parts = Statistics._fields
            site.batch = Statistics(*(proposal[f"{number}.batch.{part}"] for part in parts))
            site.coming = Statistics(*(proposal[f"{number}.coming.{part}"] for part in parts))

    @torch.no_grad()
    def remember(self, changed: bool) -> None:
        """Add what was proposed to the memory."""
        for site in self._each():
            site.remember(changed)

    @torch.no_grad()
    def settle(self, run: Callable[[], Output], output: Output, gap: float) -> tuple[Output, bool]:
        """Add the last pass, with this `output` and `gap`, to the memory; in a new domain, `run` it again.

        Returns the output, and whether a new domain has begun.
        """
        changed = False
        if gap > self.threshold:
            output, changed = self._again(run, output, gap)
        self.remember(changed)
        return output, changed

    def _again(self, run: Callable[[], Output], before: Output, gap: float) -> tuple[Output, bool]:
        """Pass a batch that is far from the memory again, with its own statistics only; return the surer output.

        The second pass predicts a new domain with more confidence. A batch of one class can be far from the memory,
        too, but is not predicted with more confidence; then the memory does not change. No class is farther than
        `CERTAIN`.
        """
        stream, proposal, output = self.stream(), self.proposal(), before
        for _ in range(PASSES):
            for site in self._each():
                site.write("stream", site.coming)
            output = run()
            self.propose(output.logits)
        if gap > CERTAIN or confidence(output.logits) > confidence(before.logits):
            return output, True
        self._put_back(stream)
        self.take_proposal(proposal)
        return before, False

    def look(self, run: Callable[[Tensor], Output], images: Tensor) -> Output:
        """Run a model; a batch of another domain uses its own statistics. The memory does not change.

        These are measured from the source on: a distant memory distorts the tokens so far that `PASSES` are too few to
        forget it.
        """
        output = run(images)
        gap = float(self.propose(output.logits)) if self.sites and self.reads == "batch" else 0.0
        if gap <= self.threshold:
            return output
        before = self.stream()
        for site in self._each():
            site.write("stream", site.read("source"))
        self.propose(run(images).logits)
        output, _ = self._again(lambda: run(images), output, gap)
        self._put_back(before)
        return output

    def _put_back(self, stream: list[Statistics]) -> None:
        for site, values in zip(self._each(), stream, strict=True):
            site.write("stream", values)

    def stream(self) -> list[Statistics]:
        """A copy of the memory, site by site."""
        return [Statistics(*map(torch.clone, site.read("stream"))) for site in self._each()]

    @torch.no_grad()
    def move(self, before: list[Statistics], after: list[Statistics]) -> None:
        """Move the memory by the difference of two memories of the same images under other weights."""
        for site, old, new in zip(self._each(), before, after, strict=True):
            own = site.read("stream")
            ratio = new.variance / old.variance.clamp(min=1e-12)
            site.write("stream", Statistics(own.mean + new.mean - old.mean, own.variance * ratio, new.images))

    def save(self, folder: Path) -> None:
        """Write it next to the weights of its model."""
        about = {name: getattr(self, name) for name in _SETTINGS}
        save_tensors(tensors_of(self), folder / FILE, {"alignment": json.dumps(about)})


def load_alignment(model: VisionModel, folder: Path) -> None:
    """Load the alignment that is stored next to the weights of a model."""
    try:
        with safe_open(folder / FILE, "pt") as file:
            about = json.loads(file.metadata()["alignment"])
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        Alignment(model, **about).load_state_dict(tensors)
    except Exception as error:  # an unknown file raises nearly anything
        problem = f"{folder / FILE} does not fit the model next to it: {first_line(error)}"
        raise UserError(problem, code="damaged-model") from error


def detach(model: VisionModel) -> None:
    """Remove the alignment of a model."""
    for layer in model.network.modules():
        hooks = layer._forward_hooks
        for key in [key for key, hook in hooks.items() if isinstance(getattr(hook, "__self__", None), Site)]:
            del hooks[key]
    release_norms(model)
    model.alignment = None


def release_norms(model: VisionModel) -> None:
    """Let BatchNorm layers normalise with the statistics of the source again."""
    for layer in model.network.modules():
        if isinstance(getattr(layer.forward, "__self__", None), NormSite):
            del layer.forward
    if model.alignment is not None:
        model.alignment.norms, model.alignment.norm_sites = [], nn.ModuleList()


def confidence(logits: Tensor) -> Tensor:
    """Mean probability of the predicted class."""
    return logits.detach().float().softmax(1).amax(1).mean()


def class_shares(logits: Tensor) -> Tensor:
    """Predicted probability of each class, (N, C); of a map of predictions, its mean."""
    shares = logits.float().softmax(1)
    return shares if shares.ndim == 2 else shares.flatten(2).mean(2)
