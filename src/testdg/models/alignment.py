"""Alignment: middle tokens of a transformer are shifted and scaled to the statistics of clean source images.

The main effect of a corruption on a vision transformer is a shift and a stretch of its middle tokens. Alignment undoes
both after a few blocks, the sites, channel by channel: h' = (h - m) clip(s_src / s, 1/2, 2) + m_src. Here m and s are
the running mean and standard deviation of the stream (the memory), m_src and s_src are measured on source images. Patch
tokens share one mean over images and places; class and register tokens have one each.

A batch of a single class has another mean, although the domain is the same. So before an image enters the statistics,
the part of its mean that its predicted classes explain is subtracted: the mean of the class in the source minus the
mean of all images.

Each batch takes three steps. `propose` computes what the batch would add to the memory, and its gap, the distance from
the memory. `settle` decides on the host whether a new domain has begun. `remember` then adds the proposal to the
memory, or replaces the memory by it. The steps are separate because a recorded CUDA graph cannot wait for the host.
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
"""Gap above which a batch is always of a new domain. Confidence does not decide so far away: it can be wrong."""
PASSES = 2
"""Passes with the statistics of a new domain. Earlier sites change the tokens of later ones, so one is not enough."""
FILE = "alignment.safetensors"
Reads = Literal["memory", "batch", "image"]
_SETTINGS = ["blocks", "prefix", "class_token", "memory", "threshold", "reads", "norms", "norm_memory", "norm_source"]


class Alignment(nn.Module):
    """All sites of a model. They are part of the model, like weights: every copy of the model has its own.

    A gap above `threshold` between recent images and the memory suggests a new domain, which clears the memory.
    `reads` says which statistics a prediction uses: those of the memory; of the batch, if it is of another domain than
    the memory; or of each image alone, mixed with the source's.
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
            norm_site.__dict__.update(owner=self, layer=layer)  # attributes, but not submodules of the site
            layer.__dict__["forward"] = norm_site.forward
            self.norm_sites.append(norm_site)
        for layer, site in zip(layers, sites, strict=True):
            site.__dict__["owner"] = self  # not a submodule of the site
            layer.register_forward_hook(site.after)
        model.alignment = self

    def follow(self) -> AbstractContextManager[None]:
        """Context in which each pass adds its images to the memory of BatchNorm layers."""
        return holding(self.norm_sites, "following", True, usual=False)

    def _each(self) -> list[Site]:
        return [site for site in self.sites if isinstance(site, Site)]

    @torch.no_grad()
    def measure(self, run: Callable[[Tensor], Output], batches: Iterable[Tensor], begin: float) -> None:
        """Measure the statistics of the source. They also become the memory, with the weight of `begin` images."""
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
        """Compute what the last pass, which predicted `logits`, would add to the memory. Returns the gap."""
        with torch.autocast(logits.device.type, enabled=False):
            shares = class_shares(logits)
            for site in self._each():
                site.propose(shares)
            return self._each()[0].gap() if self.sites else logits.new_zeros(())

    def proposal(self) -> dict[str, Tensor]:
        """The result of `propose` as a flat dict, so that a CUDA graph can return it."""
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
        """Add the proposal to the memory; if the domain has `changed`, it replaces the memory."""
        for site in self._each():
            site.remember(changed)

    @torch.no_grad()
    def settle(self, run: Callable[[], Output], output: Output, gap: float) -> tuple[Output, bool]:
        """Add the last pass, which gave `output` and `gap`, to the memory. If the gap is large, `run` it again first.

        Returns the output to use, and whether a new domain has begun.
        """
        changed = False
        if gap > self.threshold:
            output, changed = self._again(run, output, gap)
        self.remember(changed)
        return output, changed

    def _again(self, run: Callable[[], Output], before: Output, gap: float) -> tuple[Output, bool]:
        """Find out whether a batch far from the memory is of a new domain: run it aligned by its own statistics.

        A gap has two possible causes. In a new domain, the batch's own statistics are the right ones, and confidence
        rises. A batch of few classes can be far from the memory, too; then its own statistics are wrong, and confidence
        does not rise. In this case the memory and the proposal are restored, and the first output is returned. A gap
        above `CERTAIN` is always a new domain, as no class is that far away.
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
        """Predict without changing the memory; if `reads` is "batch", one of another domain uses its own statistics.

        To measure them, the batch first runs with the memory set to the source, which leaves tokens as they are. A
        distant memory would distort the tokens so much that `PASSES` passes could not remove its effect.
        """
        output = run(images)
        gap = float(self.propose(output.logits)) if self.sites and self.reads == "batch" else 0.0
        if gap <= self.threshold:
            return output
        before = self.stream()
        try:
            for site in self._each():
                site.write("stream", site.read("source"))
            self.propose(run(images).logits)
            return self._again(lambda: run(images), output, gap)[0]
        finally:  # a pass may fail
            self._put_back(before)

    def _put_back(self, stream: list[Statistics]) -> None:
        for site, values in zip(self._each(), stream, strict=True):
            site.write("stream", values)

    def stream(self) -> list[Statistics]:
        """A copy of the memory, site by site."""
        return [Statistics(*map(torch.clone, site.read("stream"))) for site in self._each()]

    @torch.no_grad()
    def move(self, before: list[Statistics], after: list[Statistics]) -> None:
        """Change the memory as that of another model has changed, from `before` to `after`, on the same images.

        This is how a student follows its teacher into a new domain without a pass of its own. Means change by the
        difference and variances by the ratio, since the two models have different weights.
        """
        for site, old, new in zip(self._each(), before, after, strict=True):
            own = site.read("stream")
            ratio = new.variance / old.variance.clamp(min=1e-12)
            site.write("stream", Statistics(own.mean + new.mean - old.mean, own.variance * ratio, new.images))

    def save(self, folder: Path) -> None:
        """Write the alignment next to the weights of its model."""
        about = {name: getattr(self, name) for name in _SETTINGS}
        save_tensors(tensors_of(self), folder / FILE, {"alignment": json.dumps(about)})


def load_alignment(model: VisionModel, folder: Path) -> None:
    """Load the alignment that is stored next to the weights of a model."""
    try:
        with safe_open(folder / FILE, "pt") as file:
            about = json.loads(file.metadata()["alignment"])
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        Alignment(model, **about).load_state_dict(tensors)
    except Exception as error:  # a damaged file can raise nearly any exception
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
    """Predicted probability of each class, (N, C); for a map of predictions, the mean over its pixels."""
    shares = logits.float().softmax(1)
    return shares if shares.ndim == 2 else shares.flatten(2).mean(2)
