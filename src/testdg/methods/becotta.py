"""BECoTTA: a mixture of low-rank experts after every block, chosen for each image (Lee et al., ICML 2024)."""

from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Generator, Tensor, nn

from testdg.core.weights import ema_update, frozen_copy, restore
from testdg.methods import Learner, Presets, Search, Settings, option, register
from testdg.methods.parts.added_layers import AddedLayer, AddedLayersAdapter, add_layers, added_layers
from testdg.methods.parts.blocks import segformer_stages, transformer_blocks
from testdg.methods.parts.entropy import hard_pixel_loss, reliable_entropy
from testdg.methods.parts.views import FOUR_RATIOS, choose_pixels, multiscale_probabilities
from testdg.methods.parts.warm_up import supervised, train_on_source
from testdg.models import VisionModel
from testdg.models.blocks import BlockOutput, first, holding, width_of, with_first

NOISE_FLOOR = 0.01
RANKS = {"S": (0, 0, 0, 6), "M": (2, 4, 10, 16), "L": (16, 32, 60, 80)}
"""Inner width of an expert in the four stages of a SegFormer."""


@dataclass(frozen=True, kw_only=True)
class BecottaSettings(Settings):
    size: Literal["S", "M", "L"] = option("M", "which stages of a SegFormer have experts, and how wide they are")
    rank: int = option(8, "inner width of an expert in any other transformer", low=1)
    experts: int = option(6, "experts after a block (published for S: 4)", low=1)
    chosen: int = option(3, "number of experts that an image uses", low=1)
    learning_rate: float = option(6e-7, "learning rate of experts and routers", low=0)
    margin: float = option(0.4, "learn from entropies below this share of the largest one, ln C", low=0)
    threshold: float = option(0.69, "confidence from which a pixel is predicted from one view", low=0, high=1)
    restore: float = option(0.01, "share of the values restored to the start after a batch", low=0, high=1)
    source_images: int = option(0, "labelled source images for a warm-up of experts and routers; 0 for none", low=0)
    warm_up_learning_rate: float = option(6e-5, "learning rate of experts and routers on source images", low=0)
    as_released: bool = option(False, "route and learn as the released code does")


class Experts(AddedLayer):
    """h + sum over the chosen experts of gate times up(GELU(down(h))), for tokens h of any leading shape (N, ..., C).

    The router scores every expert for each token; an image takes the `chosen` experts with the best mean score, and
    their softmax is the gates. `as_released` adds scores up instead, scales those of several images to [0, 1], always
    runs the first experts, and gives all images the gates of the first one, without a gradient.
    """

    def __init__(
        self, width: int, rank: int, experts: int, chosen: int, generator: Generator, device: torch.device
    ) -> None:
        super().__init__()
        self.chosen, self.as_released = chosen, False
        self.noise: Generator | None = None
        self.router = nn.Parameter(torch.empty(width, 2 * experts, device=device))
        self.down = nn.Parameter(torch.empty(experts, rank, width, device=device))
        self.up = nn.Parameter(torch.zeros(experts, rank, width, device=device))
        self.down_bias = nn.Parameter(torch.zeros(experts, rank, device=device))
        self.up_bias = nn.Parameter(torch.zeros(experts, width, device=device))
        for weight in (self.router, self.down):
            nn.init.trunc_normal_(weight, std=0.02, generator=generator)

    def gates(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Gates of the best experts of each image, (N, K), and their numbers."""
        scores, spread = (tokens @ self.router).float().chunk(2, -1)
        if self.noise is not None:
            draw = torch.randn(scores.shape, generator=self.noise, device=scores.device)
            scores = scores + draw * (F.softplus(spread) + NOISE_FLOOR)
        scores = scores.sum(1) if self.as_released else scores.mean(1)
        best, which = scores.topk(self.chosen, 1)
        if not self.as_released:
            return best.softmax(1), which
        if len(best) > 1:  # from the least to the largest score of the whole batch
            best = (best - best.min()) / (best.max() - best.min()).clamp(min=1e-12)
        first_experts = torch.arange(self.chosen, device=which.device).expand_as(which)
        return best[:1].softmax(1).detach().expand_as(best), first_experts

    def forward(self, h: Tensor) -> Tensor:
        """Add the output of the chosen experts."""
        tokens = h.flatten(1, -2)  # (N, T, C)
        gates, which = self.gates(tokens)
        down, up = (weight[which].flatten(1, 2) for weight in (self.down, self.up))  # (N, K r, C)
        inner = F.gelu(tokens @ down.mT + self.down_bias[which].flatten(1)[:, None])
        inner = inner * gates.repeat_interleave(self.down.shape[1], 1)[:, None]
        bias = (gates[..., None] * self.up_bias[which]).sum(1, keepdim=True)
        return h + (inner @ up + bias).view_as(h)

    def leave(self, _: nn.Module, __: object, output: BlockOutput) -> BlockOutput:
        return with_first(output, self(first(output)))


def add_experts(
    model: VisionModel, ranks: Sequence[int], experts: int, chosen: int, generator: Generator, as_released: bool
) -> None:
    """Put experts after the transformer blocks of a model; a block with rank 0 gets none."""
    added = []
    for block, rank in zip(transformer_blocks(model), ranks, strict=True):
        if rank:
            layer = Experts(width_of(block), rank, experts, chosen, generator, model.device)
            if as_released:
                layer.as_released = True
                nn.init.trunc_normal_(layer.up, std=0.02, generator=generator)
            block.register_forward_hook(layer.leave)
            added.append(layer)
    add_layers(model, added)


def noisy_routers(model: VisionModel, generator: Generator | None) -> AbstractContextManager[None]:
    """Let the routers of a model add noise to their scores in the passes within, unless there is no generator."""
    return holding(added_layers(model), "noise", generator, usual=None)


@register
class Becotta(AddedLayersAdapter):
    """Blend experts by what an image looks like, and lower the entropy of sure predictions with them."""

    name = "becotta"
    title = "BECoTTA"
    citation = (
        "Lee et al., BECoTTA: Input-dependent Online Blending of Experts for Continual Test-time Adaptation, ICML 2024"
    )
    example_error = 22.5
    tasks = ("classification", "segmentation")
    needs = "transformer blocks"
    source_data = "a warm-up of experts and routers (source_images=0 goes without)"
    source_labels = True
    Settings = BecottaSettings
    settings: BecottaSettings
    search = Search(rates=(1, 10, 30, 100), values={"margin": (0.2, 0.4, 0.6)})
    presets: ClassVar[Presets] = {
        "digits-c": {"learning_rate": 1e-4},
        "acdc": {"as_released": True, "source_images": 40000},
    }

    @classmethod
    def refuses(cls, model: VisionModel) -> str | None:
        return None if transformer_blocks(model) else "it has no transformer blocks to put experts behind"

    @classmethod
    def exceptions(cls, model: VisionModel) -> dict[str, str]:
        if model.task == "segmentation":
            return {"learning rate 0 is the source": "an unsure pixel is a mean over views"}
        return {}

    def build(self) -> None:
        s = self.settings
        add_experts(self.model, self._ranks(), s.experts, min(s.chosen, s.experts), self.generator, s.as_released)
        self.source = frozen_copy(self.model)
        self.learner = Learner([{"params": added_layers(self.model).parameters(), "lr": s.learning_rate}])

    def _ranks(self) -> list[int]:
        """One rank for each block."""
        if self.model.task == "classification":
            return [self.settings.rank] * len(transformer_blocks(self.model))
        ranks: list[int] = []
        for rank, blocks in zip(RANKS[self.settings.size], segformer_stages(self.model), strict=True):
            ranks += [rank] * len(blocks)
        return ranks

    def learn_source(self, batches: Iterable[tuple[Tensor, Tensor]]) -> None:
        """Train experts and routers, with noise on the scores of the routers."""
        s = self.settings
        optimizer = torch.optim.AdamW(self.learner.parameters_, s.warm_up_learning_rate)
        with noisy_routers(self.model, self.generator):
            train_on_source(supervised(self.infer), optimizer, batches, s.source_images)
        ema_update(self.source, self.model, 0.0)

    def step(self, images: Tensor) -> Tensor:
        """Predict, take one step on experts and routers, and put some of their values back."""
        s = self.settings
        dense = self.model.task == "segmentation"
        with noisy_routers(self.model, self.generator if s.as_released else None):
            taught = self._label_pixels(images) if dense else None
            logits = self.infer(images)
        if s.as_released and taught is not None:
            loss, chosen = hard_pixel_loss(logits, taught)
        else:
            loss, chosen = reliable_entropy(logits, s.margin)
        self.learner.step(loss)
        restore(self.learner.parameters_, added_layers(self.source).parameters(), s.restore, self.generator)
        self.diagnostics.update(loss=loss.detach(), learnt_from=chosen.float().mean())
        return logits if taught is None else taught

    @torch.no_grad()
    def _label_pixels(self, images: Tensor) -> Tensor:
        """Log-probabilities: of one view where it is sure, and surer than before the stream; else mean of eight."""
        plain, mean = multiscale_probabilities(self.model, images, FOUR_RATIOS)
        before = self.source(images).logits.float().softmax(1).amax(1, keepdim=True)
        confidence = plain.amax(1, keepdim=True)
        return choose_pixels((confidence > self.settings.threshold) & (confidence >= before), plain, mean)
