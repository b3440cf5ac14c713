"""TENT: entropy minimisation on the affine parameters of normalisation layers (Wang et al., ICLR 2021)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from testdg.methods.affine import AffineAdapter, AffineSettings
from testdg.methods.entropy import entropy
from testdg.methods.registry import register
from testdg.methods.settings import option


@dataclass(frozen=True, kw_only=True)
class TentSettings(AffineSettings):
    """Settings of TENT."""

    steps: int = option(1, "updates per batch", low=1)


@register
class Tent(AffineAdapter):
    """Lower the entropy of the predictions by moving the scale and shift of every normalisation layer."""

    name = "tent"
    title = "TENT"
    citation = "Wang et al., Tent: Fully Test-Time Adaptation by Entropy Minimization, ICLR 2021"
    tasks = ("classification", "segmentation")
    Settings = TentSettings
    settings: TentSettings
    presets: ClassVar[dict[str, dict[str, Any]]] = {
        "digits-c": {"learning_rate": 1e-3},
        "cifar10-c": {"learning_rate": 1e-3},
        "cifar100-c": {"learning_rate": 3e-4},
        "imagenet-c": {"learning_rate": 1e-4, "optimizer": "sgd"},
    }

    def step(self, images: Tensor) -> Tensor:
        """Predict, and take one step down the mean entropy; the prediction is the one before the last step."""
        for _ in range(self.settings.steps):
            logits: Tensor = self.model(images).logits
            loss = entropy(logits).mean()
            self.learner.step(loss)
        self.diagnostics["entropy"] = loss.detach()
        return logits
