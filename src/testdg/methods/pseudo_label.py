"""Pseudo-label: the model's own classes as labels, one step a batch (Lee, ICML 2013 workshop)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from testdg.methods.affine import TENT_PRESETS, AffineAdapter, AffineSettings
from testdg.methods.parts.entropy import entropy
from testdg.methods.registry import register
from testdg.methods.settings import option


@dataclass(frozen=True, kw_only=True)
class PseudoLabelSettings(AffineSettings):
    """Settings of the pseudo-label method."""

    confidence: float = option(0.0, "least confidence of a label; 0 takes all", low=0, high=1)
    train: Literal["norm", "all", "head"] = option("norm", "normalisation layers, all weights, or the classifier")
    reduction: Literal["selected", "batch"] = option("selected", "what the loss is averaged over")
    steps: int = option(1, "updates per batch", low=1)


def pseudo_label_loss(logits: Tensor, confidence: float, reduction: str = "selected") -> tuple[Tensor, Tensor]:
    """Cross-entropy to the most probable class where it is confident enough, and which images or pixels are."""
    best, labels = logits.detach().float().softmax(1).max(1)
    chosen = best >= confidence
    losses = torch.where(chosen, F.cross_entropy(logits.float(), labels, reduction="none"), 0.0)
    count = chosen.sum().clamp(min=1) if reduction == "selected" else chosen.numel()
    return losses.sum() / count, chosen


@register
class PseudoLabel(AffineAdapter):
    """Train on the model's own most probable classes as if they were labels."""

    name = "pseudo_label"
    title = "Pseudo-label"
    citation = "Lee, Pseudo-Label: The Simple and Efficient Semi-Supervised Learning Method, ICML workshop 2013"
    tasks = ("classification", "segmentation")
    reconstruction = True
    Settings = PseudoLabelSettings
    settings: PseudoLabelSettings
    presets: ClassVar[dict[str, dict[str, Any]]] = {
        **TENT_PRESETS,
        "acdc": {"learning_rate": 7.5e-6, "batch_statistics": False},
    }

    def chosen(self) -> list[nn.Parameter]:
        """Parameters to train."""
        if self.settings.train == "all":
            return list(self.model.parameters())
        if self.settings.train == "head":
            return list(self.model.head_layer.parameters())
        return super().chosen()

    def step(self, images: Tensor) -> Tensor:
        """Predict, and take one step towards the predicted classes; the prediction is the one before the last step."""
        s = self.settings
        if s.steps > 1:
            self.keep(self.learner.held())
        for _ in range(s.steps):
            logits: Tensor = self.model(images).logits
            loss, chosen = pseudo_label_loss(logits, s.confidence, s.reduction)
            self.learner.step(loss, when=chosen.any())
        mean = logits.detach().float().softmax(1).transpose(0, 1).flatten(1).mean(1)
        self.diagnostics.update(
            loss=loss.detach(), learnt_from=chosen.sum(), diversity=entropy(mean.log()[None]).squeeze(0)
        )
        return logits
