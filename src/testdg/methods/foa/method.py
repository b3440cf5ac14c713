"""FOA: prompts by evolution, and features shifted to the source; forward passes only (Niu et al., ICML 2024)."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from testdg.methods.adapter import Adapter
from testdg.methods.foa.evolution import Evolution
from testdg.methods.foa.fitness import Seen, fitness, see_class_tokens
from testdg.methods.parts.blocks import class_tokens
from testdg.methods.parts.prompts import draw_prompts, moments, prompted
from testdg.methods.parts.waiting import Waiting
from testdg.methods.registry import register
from testdg.methods.search import Search
from testdg.methods.settings import Settings, option
from testdg.models import VisionModel


@dataclass(frozen=True, kw_only=True)
class FOASettings(Settings):
    """Settings of FOA."""

    prompts: int = option(3, "tokens that are added to the input", low=1)
    population: int | None = option(None, "candidates of a batch beside the last winner; none: 4 + 3 ln size", low=4)
    statistics_weight: float = option(0.4, "of the distance to the source in the fitness, for 64 images", low=0)
    shift: float = option(1.0, "how far the final features are moved to the source", low=0)
    shift_share: float = option(0.1, "share of a batch in the running mean of the final features", low=0, high=1)
    least_images: int = option(16, "images of a generation; smaller batches wait until there are so many", low=2)
    source_images: int = option(512, "clean images, unlabelled, that the source is measured on", low=2)


@register
class FOA(Adapter):
    """Find prompts for the frozen network by CMA-ES, and shift its last features to the source.

    Examples:
        >>> from testdg.evaluation import run
        >>> result = run("digits-c", "foa", images=100, domains=["snow", "frost"])
        >>> print(f"error {result.mean_score:.1f} %")
        error 15.5 %
    """

    name = "foa"
    title = "FOA"
    citation = "Niu et al., Test-Time Model Adaptation with Only Forward Passes, ICML 2024"
    needs = "a class token"
    source_data = "measuring its class tokens"
    source_labels = False
    least_source_images = 2
    differs_from_source = "prompts are added, and features are shifted"
    Settings = FOASettings
    settings: FOASettings
    search = Search(values={"statistics_weight": (0.1, 0.4, 1.0, 4.0), "shift": (0.0, 0.5, 1.0)})
    presets: ClassVar[dict[str, dict[str, Any]]] = {"imagenet-c": {"statistics_weight": 0.4}}
    source: Tensor
    best: Tensor
    usual: Tensor
    begun: Tensor

    @classmethod
    def refuses(cls, model: VisionModel) -> str | None:
        """Prompts stand beside a class token."""
        return None if class_tokens(model) else "it has no class token that prompts could stand beside"

    def needs_features(self) -> bool:
        """The shift is one of features."""
        return True

    def build(self) -> None:
        """Make the first prompts, the evolution, and room for the statistics."""
        s, model, device = self.settings, self.model, self.model.device
        self.others = class_tokens(model)
        self.register_buffer("best", draw_prompts(model, s.prompts, self.generator))
        self.evolution = Evolution(self.best.numel(), s.population, device)
        self.waiting = Waiting(s.least_images, ("images",))
        self.register_buffer("source", torch.zeros(2, self._width(), device=device))
        self.register_buffer("usual", torch.zeros(model.feature_size, device=device))
        self.register_buffer("begun", torch.zeros((), dtype=torch.bool, device=device))

    @torch.no_grad()
    def _width(self) -> int:
        """Numbers in all class tokens of an image."""
        return see_class_tokens(self.model, self.model.empty_image()).tokens.shape[1]

    @torch.no_grad()
    def learn_source(self, batches: Iterable[tuple[Tensor, Tensor]]) -> None:
        """Measure mean and deviation of class tokens without prompts."""
        tokens = torch.cat([see_class_tokens(self.model, images).tokens for images, _ in batches])
        self.source.copy_(moments(tokens))

    @torch.no_grad()
    def step(self, images: Tensor) -> Tensor:
        """Predict by the best of the candidates that are tried on the batch; a small batch, by the last winner."""
        gathered = self.waiting.gather(images)
        early = self.infer(images) if gathered is None or gathered[0] is not images else None
        if gathered is None:
            assert early is not None
            return early
        logits = self._search(gathered[0])
        return logits if early is None else early

    def _search(self, images: Tensor) -> Tensor:
        """Try a generation of prompts and the last winner; all that is kept changes after the last pass."""
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

    def _see(self, images: Tensor, prompts: Tensor) -> Seen:
        with prompted(self.model, prompts, self.others):
            return see_class_tokens(self.model, images)

    def _shift(self) -> Tensor:
        """What the classifier makes of the gap between the source and the features of earlier batches, (C,)."""
        weight = self.model.head_weight.float()
        gap = self.source[0, -len(self.usual) :] - self.usual
        with torch.autocast(weight.device.type, enabled=False):
            return torch.where(self.begun, self.settings.shift * (weight @ gap), 0.0)

    def infer(self, images: Tensor) -> Tensor:
        """Predict with the last winner and the shift."""
        return self._see(images, self.best).logits + self._shift()

    def beyond_weights(self) -> str | None:
        """Prompts are tokens, not weights."""
        return "it adds tokens to those of the image"
