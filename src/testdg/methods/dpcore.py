"""DPCore: a list of prompts, one a domain, mixed by how near a batch is to each (Zhang et al., ICML 2025)."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from testdg.errors import UserError
from testdg.methods import Presets, Search, Settings, option, register
from testdg.methods.parts.blocks import class_tokens
from testdg.methods.parts.entropy import entropy
from testdg.methods.parts.prompted import PromptedAdapter, draw_prompts, moments, prompted
from testdg.methods.parts.waiting import Waiting
from testdg.models import Output


@dataclass(frozen=True, kw_only=True)
class DPCoreSettings(Settings):
    prompts: int = option(8, "tokens that are added to the input", low=1)
    learning_rate: float = option(0.1, "learning rate of the prompts (AdamW)", low=0)
    new_steps: int = option(50, "steps for learning the prompt of a new domain", low=1)
    threshold: float = option(
        0.8, "a domain is known if the mixed prompt reduces the distance to the source below this share", low=0
    )
    rate: float = option(
        0.999, "how far elements move to the result of a known batch, times their share", low=0, high=1
    )
    temperature: float = option(3.0, "softmax temperature of the shares of elements", low=1e-3)
    deviation_weight: float = option(1.0, "weight of deviations in distances", low=0)
    statistics: Literal["prompted", "raw"] = option(
        "prompted", "features that elements follow: with the prompt (released code), or without, as they are matched"
    )
    elements: int = option(
        256, "maximum number of elements; when it is reached, every batch is of a known domain", low=1
    )
    least_images: int = option(16, "minimum number of images in a step; smaller batches are collected", low=2)
    source_images: int = option(300, "number of clean, unlabelled images for measuring the source", low=2)
    source_entropy: float | None = option(None, "ignore source images with a higher entropy", low=0)


def distance(one: Tensor, other: Tensor, weight: float = 1.0) -> Tensor:
    """Distance of means plus the weighted distance of deviations, (..., 2, D) to (...)."""
    gaps: Tensor = torch.linalg.vector_norm(one - other, dim=-1)
    return gaps[..., 0] + weight * gaps[..., 1]


class Coreset(nn.Module):
    """A list of elements in a fixed number of places; the first `count` are taken."""

    def __init__(self, places: int, features: int, prompts: torch.Size, device: torch.device) -> None:
        super().__init__()
        self.count = 0
        self.statistics: Tensor = nn.Buffer(torch.zeros(places, 2, features, device=device))
        self.prompts: Tensor = nn.Buffer(torch.zeros(places, *prompts, device=device))

    @property
    def full(self) -> bool:
        return self.count == len(self.prompts)

    def weigh(self, found: Tensor, temperature: float, weight: float) -> Tensor:
        """Shares of the elements for a batch with such moments, (K,): the nearer, the more."""
        return (-distance(found, self.statistics[: self.count], weight) / temperature).softmax(0)

    def mix(self, shares: Tensor) -> Tensor:
        """The mean of the prompts by their shares, (P, D)."""
        return (shares[:, None, None] * self.prompts[: self.count]).sum(0)

    def add(self, found: Tensor, prompt: Tensor) -> None:
        self.statistics[self.count], self.prompts[self.count] = found, prompt
        self.count += 1

    def refine(self, shares: Tensor, found: Tensor, prompt: Tensor, rate: float) -> None:
        """Move each element by its share; deviations only grow."""
        gaps = found - self.statistics[: self.count]
        gaps[:, 1].clamp_(min=0)
        self.statistics[: self.count] += rate * shares[:, None, None] * gaps
        self.prompts[: self.count] += rate * shares[:, None, None] * (prompt - self.prompts[: self.count])

    def get_extra_state(self) -> int:
        return self.count

    def set_extra_state(self, state: int) -> None:
        if not 0 <= state <= len(self.prompts):
            raise ValueError(f"{state} elements in {len(self.prompts)} places")
        self.count = int(state)


@register
class DPCore(PromptedAdapter):
    """Bring features to the statistics of the source by prompts, which are stored for when a domain returns."""

    name = "dpcore"
    title = "DPCore"
    citation = "Zhang et al., DPCore: Dynamic Prompt Coreset for Continual Test-Time Adaptation, ICML 2025"
    example_error = 10.0
    source_data = "measuring the features that prompts bring back"
    differs_from_source = "prompts are added"
    Settings = DPCoreSettings
    settings: DPCoreSettings
    search = Search(rates=(0.03, 0.1, 0.3, 1), values={"threshold": (0.6, 0.8, 0.95)})
    presets: ClassVar[Presets] = {"imagenet-c": {"source_entropy": 2.4539}}

    def build(self) -> None:
        s, model = self.settings, self.model
        self.others = class_tokens(model)
        self.initial: Tensor = nn.Buffer(draw_prompts(model, s.prompts, self.generator))
        self.source: Tensor = nn.Buffer(torch.zeros(2, model.feature_size, device=model.device))
        self.coreset = Coreset(s.elements, model.feature_size, self.initial.shape, model.device)
        self.waiting = Waiting(s.least_images, ("images",))

    @torch.no_grad()
    def learn_source(self, batches: Iterable[tuple[Tensor, Tensor]]) -> None:
        limit, kept = self.settings.source_entropy, []
        for images, _ in batches:
            output = self.model(images)
            sure = entropy(output.logits) < (torch.inf if limit is None else limit)
            kept.append(output.features[sure].float())
        if len(features := torch.cat(kept)) < 2:
            needs = f"dpcore needs two source images with an entropy below {limit}"
            raise UserError(f"{needs}; got {len(features)}", code="few-source-images")
        self.source.copy_(moments(features))

    def learn(self, images: Tensor) -> Tensor:
        """Refine what is known, where that brings the batch near enough to the source; else begin a new element."""
        s = self.settings
        with torch.no_grad():
            raw = moments(self.model(images).features.float())
        self.diagnostics.update(elements=self.coreset.count, distance=self.loss(raw))
        if self.coreset.count:
            shares = self.coreset.weigh(raw, s.temperature, s.deviation_weight)
            prompt = self.coreset.mix(shares).requires_grad_(True)
            output = self.see(images, prompt)
            loss = self.loss(found := moments(output.features.float()))
            if self.coreset.full or bool(loss < s.threshold * self.loss(raw)):
                self._move(prompt, loss, self._optimizer(prompt))
                followed = found.detach() if s.statistics == "prompted" else raw
                self.coreset.refine(shares, followed, prompt.detach(), s.rate)
                return output.logits
        return self._begin(images, raw)

    def _begin(self, images: Tensor, raw: Tensor) -> Tensor:
        """Learn a prompt from the first one on; the prediction is that of the last pass."""
        prompt = self.initial.clone().requires_grad_(True)
        optimizer = self._optimizer(prompt)
        for _ in range(self.settings.new_steps):
            output = self.see(images, prompt)
            self._move(prompt, self.loss(moments(output.features.float())), optimizer)
        self.coreset.add(raw, prompt.detach())
        return output.logits

    def _optimizer(self, prompt: Tensor) -> torch.optim.Optimizer:
        return torch.optim.AdamW([prompt], lr=self.settings.learning_rate, weight_decay=0.01)

    def _move(self, prompt: Tensor, loss: Tensor, optimizer: torch.optim.Optimizer) -> None:
        with torch.autocast(loss.device.type, enabled=False):
            (prompt.grad,) = torch.autograd.grad(loss, [prompt])
        optimizer.step()

    def see(self, images: Tensor, prompt: Tensor) -> Output:
        with prompted(self.model, prompt, self.others):
            return self.model(images)  # type: ignore[no-any-return]

    def loss(self, found: Tensor) -> Tensor:
        """Distance of moments to the source."""
        return distance(found, self.source, self.settings.deviation_weight)

    def infer(self, images: Tensor) -> Tensor:
        """Predict with the mix of prompts that suits the batch; of one image the mean alone is compared."""
        output: Output = self.model(images)
        if not self.coreset.count:
            return output.logits
        weight = self.settings.deviation_weight if len(images) > 1 else 0.0
        shares = self.coreset.weigh(moments(output.features.float()), self.settings.temperature, weight)
        return self.see(images, self.coreset.mix(shares)).logits
