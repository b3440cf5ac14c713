"""TENT: entropy minimisation on the affine parameters of normalisation layers (Wang et al., ICLR 2021)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from torch import Tensor

from testdg.methods.adapter import Adapter
from testdg.methods.learner import Learner
from testdg.methods.normalisation import affine_parameters, batch_norms, use_batch_statistics
from testdg.methods.registry import register
from testdg.methods.settings import Settings, option
from testdg.models import VisionModel


@dataclass(frozen=True, kw_only=True)
class TentSettings(Settings):
    """Settings of TENT."""

    learning_rate: float = option(1e-4, "step size on the normalisation layers", low=0)
    optimizer: Literal["adam", "sgd"] = option("adam", "Adam, or SGD with Nesterov momentum 0.9")
    steps: int = option(1, "updates per batch", low=1)
    batch_statistics: bool = option(True, "BatchNorm layers use the statistics of the batch, as in the paper")


def entropy(logits: Tensor) -> Tensor:
    """Entropy of each prediction."""
    log_p = logits.float().log_softmax(1)
    return -(log_p.exp() * log_p).sum(1)


@register
class Tent(Adapter):
    """Lower the entropy of the predictions by moving the scale and shift of every normalisation layer."""

    name = "tent"
    title = "TENT"
    citation = "Wang et al., Tent: Fully Test-Time Adaptation by Entropy Minimization, ICLR 2021"
    tasks = ("classification", "segmentation")
    needs = "normalisation layers"
    Settings = TentSettings
    settings: TentSettings
    presets: ClassVar[dict[str, dict[str, Any]]] = {
        "digits-c": {"learning_rate": 1e-3},
        "cifar10-c": {"learning_rate": 1e-3},
        "cifar100-c": {"learning_rate": 3e-4},
        "imagenet-c": {"learning_rate": 1e-4, "optimizer": "sgd"},
    }

    @classmethod
    def refuses(cls, model: VisionModel) -> str | None:
        """A model without affine normalisation layers has nothing to train."""
        return None if affine_parameters(model) else "it has no normalisation layer with scale and shift"

    @classmethod
    def exceptions(cls, model: VisionModel) -> dict[str, str]:
        """Batch statistics change the prediction even without learning."""
        if batch_norms(model):
            return {"learning rate 0 is the source": "BatchNorm layers use the statistics of the batch"}
        return {}

    def build(self) -> None:
        """Free the affine parameters and make the optimiser."""
        if self.settings.batch_statistics:
            use_batch_statistics(self.model)
        chosen = [parameter.requires_grad_(True) for parameter in affine_parameters(self.model)]
        self.learner = Learner([{"params": chosen, "lr": self.settings.learning_rate}], self.settings.optimizer)

    def step(self, images: Tensor) -> Tensor:
        """Predict, and take one step down the mean entropy; the prediction is the one before the last step."""
        for _ in range(self.settings.steps):
            logits: Tensor = self.model(images).logits
            loss = entropy(logits).mean()
            self.learner.step(loss)
        self.diagnostics["entropy"] = loss.detach()
        return logits
