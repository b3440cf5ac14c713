"""T3A: class templates from confident features take the place of the classifier (Iwasawa and Matsuo, NeurIPS 2021)."""

from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from testdg.core.weights import frozen_copy
from testdg.methods import Adapter, Presets, Search, Settings, option, register
from testdg.methods.parts.entropy import entropy
from testdg.models import Output, VisionModel


@dataclass(frozen=True, kw_only=True)
class T3ASettings(Settings):
    supports: int | None = option(
        20, "features of lowest entropy that are stored for each class; none stores all", low=1
    )


@register
class T3A(Adapter):
    """Predict by the product with class templates: means of the features that the source classifier is surest of."""

    name = "t3a"
    title = "T3A"
    citation = (
        "Iwasawa and Matsuo, Test-Time Classifier Adjustment Module for Model-Agnostic Domain Generalization, "
        "NeurIPS 2021"
    )
    example_error = 20.5
    differs_from_source = "templates take the place of the classifier"
    needs_features = True
    Settings = T3ASettings
    settings: T3ASettings
    search = Search(values={"supports": (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000)})
    presets: ClassVar[Presets] = {
        "digits-c": {"supports": 100},
        "cifar10-c": {"supports": 100},
        "cifar100-c": {"supports": 50},
        "imagenet-c": {"supports": 20},
    }
    uncopied = ("features",)  # replaced, or written after the last pass

    @classmethod
    def refuses(cls, model: VisionModel) -> str | None:
        return None if model.exact else f"what leaves its classifier {model.head!r} is changed before it is returned"

    @torch.no_grad()
    def build(self) -> None:
        """Make the store: unit features (C, M, D) with their entropies, infinite where a place is free.

        If all supports are stored, only their sum is needed, so that M is 1 and the entropies have no meaning.
        """
        shape, device = (self.model.classes, self.settings.supports or 1), self.model.device
        self.features: Tensor = nn.Buffer(torch.zeros(*shape, self.model.feature_size, device=device))
        self.entropies: Tensor = nn.Buffer(torch.full(shape, torch.inf, device=device))
        rows, bias = self.model.head_weight.float(), self.model.head_layer.bias
        self._add(rows, F.linear(rows, rows, bias if isinstance(bias, Tensor) else None))

    @torch.no_grad()
    def step(self, images: Tensor) -> Tensor:
        """Remember the features of a batch under the classes that the source gives them, then predict."""
        output = self.model(images)
        self._add(output.features.float(), output.logits.float())
        self.diagnostics["entropy"] = entropy(output.logits).mean()
        return self._score(output)

    def infer(self, images: Tensor) -> Tensor:
        return self._score(self.model(images))

    def templates(self) -> Tensor:
        """One unit vector a class; the row of the source classifier for a class without supports."""
        total = self.features.sum(1)
        rows = self.model.head_weight.float()
        return F.normalize(torch.where(total.any(1, keepdim=True), total, rows))

    def predicting_model(self) -> VisionModel:
        model = frozen_copy(self.model)
        head = model.head_layer
        model.head_weight.copy_(self.templates())  # a view of the head's own
        if isinstance(head.bias, Tensor):
            head.bias.zero_()
        return model

    def _score(self, output: Output) -> Tensor:
        with torch.autocast(output.features.device.type, enabled=False):
            return output.features.float() @ self.templates().T

    def _add(self, features: Tensor, logits: Tensor) -> None:
        """Put features under the classes of their logits; of each class, those of least entropy stay."""
        count = len(features)
        classes, places, width = self.features.shape
        mine = logits.argmax(1) == torch.arange(classes, device=logits.device)[:, None]  # (C, N)
        units = F.normalize(features)
        if self.settings.supports is None:
            with torch.autocast(features.device.type, enabled=False):
                self.features[:, 0] += mine.float() @ units
            return
        candidates = torch.cat([self.entropies, torch.where(mine, entropy(logits), torch.inf)], 1)
        kept, order = candidates.sort(stable=True, dim=1)  # (C, M + N)
        old = torch.arange(classes * places, device=logits.device).view(classes, places)
        new = torch.arange(count, device=logits.device).expand(classes, -1) + classes * places
        rows = torch.cat([old, new], 1).gather(1, order)[:, :places]
        everything = torch.cat([self.features.view(-1, width), units])
        free = kept[:, :places].isinf()[..., None]
        self.features = everything[rows].masked_fill(free, 0)
        self.entropies = kept[:, :places].contiguous()
