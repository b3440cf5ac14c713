"""FOA: prompts by evolution, and features shifted to the source; forward passes only (Niu et al., ICML 2024)."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Generator, Tensor, nn

from testdg.methods import PlainState, Presets, Search, Settings, option, register
from testdg.methods.parts.blocks import class_tokens, transformer_blocks
from testdg.methods.parts.entropy import entropy
from testdg.methods.parts.prompted import PromptedAdapter, draw_prompts, moments, prompted
from testdg.methods.parts.waiting import Waiting
from testdg.models import Output, VisionModel
from testdg.models.blocks import watching

SMOOTHING = 0.3
"""Share of the newest evidence on whether the last move of the mean should have been longer."""
USUAL_BATCH = 64
"""Images for which the weight of the statistics was chosen."""


@dataclass(frozen=True, kw_only=True)
class FOASettings(Settings):
    prompts: int = option(3, "tokens that are added to the input", low=1)
    population: int | None = option(
        None, "candidates of a batch in addition to the last winner; none: 4 + 3 ln size", low=4
    )
    statistics_weight: float = option(0.4, "weight of the distance to the source in the fitness, for 64 images", low=0)
    shift: float = option(1.0, "how far the final features are moved to the source", low=0)
    shift_share: float = option(0.1, "share of a batch in the running mean of the final features", low=0, high=1)
    least_images: int = option(16, "minimum number of images in a generation; smaller batches are collected", low=2)
    source_images: int = option(512, "number of clean, unlabelled images for measuring the source", low=2)


def default_population(size: int) -> int:
    """Candidates of a generation in so many dimensions."""
    return 4 + int(3 * math.log(size))


def recombination_weights(population: int) -> Tensor:
    """Weights of the better half, from the best on; they sum to 1."""
    ranks = torch.arange(1, population // 2 + 1, dtype=torch.float64, device="cpu")
    weights = math.log((population + 1) / 2) - ranks.log()
    return weights / weights.sum()


class Evolution(PlainState):
    """CMA-ES: candidates from a normal distribution that learns its mean, size and covariance from their ranks.

    After Hansen, *The CMA Evolution Strategy: A Tutorial* (arXiv 1604.00772), with weights for the better half alone
    and two-point adaptation of the size: normal with `mean` and `sigma`² `covariance` = (basis scales)². All state is
    tensors and a number, so that it is saved and restored exactly.
    """

    plain = ("waited",)
    uncopied = ("covariance", "basis")  # replaced, never written in place

    def __init__(self, size: int, population: int | None = None, device: torch.device | None = None) -> None:
        super().__init__()
        self.population = population or default_population(size)
        weights = recombination_weights(self.population)
        self.effective = float(1 / weights.square().sum())
        self.weights: Tensor = nn.Buffer(weights.float().to(device), persistent=False)
        ratio = self.effective / size
        self.path_share = (4 + ratio) / (size + 4 + 2 * ratio)
        self.rank_one = 2 / ((size + 1.3) ** 2 + self.effective)
        rank_many = 2 * (self.effective - 2 + 1 / self.effective) / ((size + 2) ** 2 + self.effective)
        self.rank_many = min(1 - self.rank_one, rank_many)
        self.patience = 1 / ((self.rank_one + self.rank_many) * size * 10)
        self.waited = 0  # generations since the basis was computed
        self.mean: Tensor = nn.Buffer(torch.zeros(size, device=device))
        self.path: Tensor = nn.Buffer(torch.zeros(size, device=device))
        self.move: Tensor = nn.Buffer(torch.zeros(size, device=device))
        self.covariance: Tensor = nn.Buffer(torch.eye(size, device=device))
        self.basis: Tensor = nn.Buffer(torch.eye(size, device=device))
        self.scales: Tensor = nn.Buffer(torch.ones(size, device=device))
        self.sigma: Tensor = nn.Buffer(torch.ones((), device=device))
        self.longer: Tensor = nn.Buffer(torch.zeros((), device=device))

    def ask(self, generator: Generator) -> Tensor:
        """Candidates (population, size); the first two lie along the last move of the mean, forwards and backwards."""
        normal = torch.randn(self.population, len(self.mean), generator=generator, device=self.mean.device)
        steps = (normal * self.scales) @ self.basis.T
        along = self.move * normal[0].norm() / self.lengths(self.move[None]).clamp(min=1e-12)
        moved = self.move.any()
        steps[0], steps[1] = torch.where(moved, along, steps[0]), torch.where(moved, -along, steps[1])
        return self.mean + self.sigma * steps

    def lengths(self, steps: Tensor) -> Tensor:
        """Lengths of steps (K, size) in standard deviations of the distribution."""
        return (steps @ self.basis / self.scales).square().sum(1).sqrt()

    def tell(self, candidates: Tensor, values: Tensor) -> None:
        """Learn from the values of candidates, small ones being good; those beyond the population may be foreign."""
        size, given = len(self.mean), len(candidates)
        steps = (candidates - self.mean) / self.sigma
        reach = (math.sqrt(size) / self.lengths(steps).clamp(min=1e-12)).clamp(max=1)
        reach[: self.population] = 1  # only foreign ones are shortened
        order = values.argsort(stable=True)
        best = (steps * reach[:, None])[order[: len(self.weights)]]
        mean_step = self.weights @ best
        rank = order.argsort()
        better = (rank[1] - rank[0]) / (given - 1) * self.move.any()
        self._learn_covariance(best, mean_step)
        self.mean += self.sigma * mean_step
        self.move.copy_(mean_step)
        self.longer.lerp_(better, SMOOTHING)
        self.sigma *= (self.longer / math.sqrt(size)).exp()

    def _learn_covariance(self, best: Tensor, mean_step: Tensor) -> None:
        share = self.path_share
        path = (1 - share) * self.path + math.sqrt(share * (2 - share) * self.effective) * mean_step
        many = (best * self.weights[:, None]).T @ best
        old = (1 - self.rank_one - self.rank_many) * self.covariance
        covariance = old + self.rank_one * path.outer(path) + self.rank_many * many
        if self.waited + 1 > self.patience:
            squares, basis = torch.linalg.eigh(covariance)
            self.basis, self.waited = basis, 0
            self.scales.copy_(squares.clamp(min=1e-20).sqrt())
        else:
            self.waited += 1
        self.covariance = covariance
        self.path.copy_(path)


class TokenOutput(NamedTuple):
    """Logits, features (N, D) and all class tokens of a pass, (N, ...)."""

    logits: Tensor
    features: Tensor
    tokens: Tensor


def see_class_tokens(model: VisionModel, images: Tensor) -> TokenOutput:
    """Run a model; class tokens are those that the first LayerNorm of each block but one gives, then the features."""
    class_tokens: dict[nn.Module, Tensor] = {}

    def note(layer: nn.Module, _: object, output: Tensor) -> None:
        class_tokens.setdefault(layer, output[:, 0].float())

    blocks = transformer_blocks(model)[1:]
    norms = [next(layer for layer in block.modules() if isinstance(layer, nn.LayerNorm)) for block in blocks]
    with watching(*norms, note=note):
        output: Output = model(images)
    features = output.features.float()
    return TokenOutput(
        output.logits.float(), features, torch.cat([*(class_tokens[norm] for norm in norms), features], 1)
    )


def fitness(seen: TokenOutput, source: Tensor, weight: float) -> Tensor:
    """Sum of entropies, and squared distances of mean and deviation over images to the source's; small is good."""
    distance = (moments(seen.tokens) - source).square().sum()
    return entropy(seen.logits).sum() + weight * len(seen.logits) / USUAL_BATCH * distance


@register
class FOA(PromptedAdapter):
    """Find prompts for the frozen network by CMA-ES, and shift its last features to the source."""

    name = "foa"
    title = "FOA"
    citation = "Niu et al., Test-Time Model Adaptation with Only Forward Passes, ICML 2024"
    example_error = 15.5
    source_data = "measuring its class tokens"
    differs_from_source = "prompts are added, and features are shifted"
    needs_features = True
    Settings = FOASettings
    settings: FOASettings
    search = Search(values={"statistics_weight": (0.1, 0.4, 1.0, 4.0), "shift": (0.0, 0.5, 1.0)})
    presets: ClassVar[Presets] = {"imagenet-c": {"statistics_weight": 0.4}}

    @torch.no_grad()
    def build(self) -> None:
        s, model, device = self.settings, self.model, self.model.device
        self.others = class_tokens(model)
        self.best: Tensor = nn.Buffer(draw_prompts(model, s.prompts, self.generator))
        self.evolution = Evolution(self.best.numel(), s.population, device)
        self.waiting = Waiting(s.least_images, ("images",))
        width = see_class_tokens(model, model.empty_image()).tokens.shape[1]
        self.source: Tensor = nn.Buffer(torch.zeros(2, width, device=device))
        self.usual: Tensor = nn.Buffer(torch.zeros(model.feature_size, device=device))
        self.begun: Tensor = nn.Buffer(torch.zeros((), dtype=torch.bool, device=device))

    @torch.no_grad()
    def learn_source(self, batches: Iterable[tuple[Tensor, Tensor]]) -> None:
        tokens = torch.cat([see_class_tokens(self.model, images).tokens for images, _ in batches])
        self.source.copy_(moments(tokens))

    @torch.no_grad()
    def learn(self, images: Tensor) -> Tensor:
        """Predict by the best of a generation and the last winner; the state changes after the last pass."""
        with torch.autocast(images.device.type, enabled=False):
            candidates = torch.cat([self.evolution.ask(self.generator), self.best.flatten()[None]])
        tried = [self._see(images, prompts.view_as(self.best)) for prompts in candidates]
        values = torch.stack([fitness(seen, self.source, self.settings.statistics_weight) for seen in tried])
        winner = values.argsort(stable=True)[0]
        logits = torch.stack([seen.logits for seen in tried])[winner] + self._shift()
        self._learn(candidates, values, winner, torch.stack([seen.features.mean(0) for seen in tried]).mean(0))
        self.diagnostics.update(fitness=values[winner], sigma=self.evolution.sigma.clone())
        return logits

    def _learn(self, candidates: Tensor, values: Tensor, winner: Tensor, mean: Tensor) -> None:
        with torch.autocast(candidates.device.type, enabled=False):
            self.evolution.tell(candidates, values)
        self.best.copy_(candidates[winner].view_as(self.best))
        self.usual.copy_(torch.where(self.begun, self.usual.lerp(mean, self.settings.shift_share), mean))
        self.begun.fill_(True)

    def _see(self, images: Tensor, prompts: Tensor) -> TokenOutput:
        with prompted(self.model, prompts, self.others):
            return see_class_tokens(self.model, images)

    def _shift(self) -> Tensor:
        """Effect on the logits of the gap between the source and the features of earlier batches, (C,)."""
        weight = self.model.head_weight.float()
        gap = self.source[0, -len(self.usual) :] - self.usual
        with torch.autocast(weight.device.type, enabled=False):
            return torch.where(self.begun, self.settings.shift * (weight @ gap), 0.0)

    def infer(self, images: Tensor) -> Tensor:
        return self._see(images, self.best).logits + self._shift()
