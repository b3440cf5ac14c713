"""Pseudo-label: the model's own classes as labels, one step a batch (Lee, ICML 2013 workshop)."""

from dataclasses import dataclass
from typing import ClassVar

import torch.nn.functional as F
from torch import Tensor

from testdg.methods import Presets, Search, option, register
from testdg.methods.parts.affine import TENT_PRESETS, AffineAdapter, AffineSettings
from testdg.methods.parts.entropy import entropy, masked_mean


@dataclass(frozen=True, kw_only=True)
class PseudoLabelSettings(AffineSettings):
    confidence: float = option(0.0, "minimum confidence of a label; 0 accepts all", low=0, high=1)


def pseudo_label_loss(logits: Tensor, confidence: float) -> tuple[Tensor, Tensor]:
    """Cross-entropy to the most probable class where it is confident enough, and which images or pixels are."""
    best, labels = logits.detach().float().softmax(1).max(1)
    chosen = best >= confidence
    return masked_mean(F.cross_entropy(logits.float(), labels, reduction="none"), chosen), chosen


@register
class PseudoLabel(AffineAdapter):
    """Train on the model's own most probable classes as if they were labels."""

    name = "pseudo_label"
    title = "Pseudo-label"
    citation = "Lee, Pseudo-Label: The Simple and Efficient Semi-Supervised Learning Method, ICML workshop 2013"
    example_error = 22.5
    tasks = ("classification", "segmentation")
    reconstruction = True
    Settings = PseudoLabelSettings
    settings: PseudoLabelSettings
    search = Search(rates=(1e-3, 0.01, 0.1, 1), values={"confidence": (0.0, 0.5, 0.9)})
    presets: ClassVar[Presets] = {
        **TENT_PRESETS,
        "acdc": {"learning_rate": 7.5e-6, "batch_statistics": False},
    }

    def step(self, images: Tensor) -> Tensor:
        """Predict, and take one step towards the predicted classes."""
        logits: Tensor = self.model(images).logits
        loss, chosen = pseudo_label_loss(logits, self.settings.confidence)
        self.learner.step(loss, when=chosen.any())
        mean = logits.detach().float().softmax(1).transpose(0, 1).flatten(1).mean(1)
        self.diagnostics.update(
            loss=loss.detach(), learnt_from=chosen.sum(), diversity=entropy(mean.log()[None]).squeeze(0)
        )
        return logits
