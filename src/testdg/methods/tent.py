"""TENT: entropy minimisation on the affine parameters of normalisation layers (Wang et al., ICLR 2021)."""

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch.nn.functional as F
from torch import Tensor

from testdg.methods import Presets, Search, option, register
from testdg.methods.parts.affine import TENT_PRESETS, AffineAdapter, AffineSettings
from testdg.methods.parts.entropy import LOSSES


@dataclass(frozen=True, kw_only=True)
class TentSettings(AffineSettings):
    steps: int = option(1, "updates per batch", low=1)
    loss: Literal["entropy", "hard", "come"] = option(
        "entropy",
        "entropy (paper), cross-entropy to the predicted class, as in the published numbers on ACDC, or COME's entropy "
        "of the prediction as an opinion",
    )


@register
class Tent(AffineAdapter):
    """Lower the entropy of the predictions by moving the scale and shift of every normalisation layer."""

    name = "tent"
    title = "TENT"
    citation = "Wang et al., Tent: Fully Test-Time Adaptation by Entropy Minimization, ICLR 2021"
    example_error = 21.5
    tasks = ("classification", "segmentation")
    Settings = TentSettings
    settings: TentSettings
    search = Search(
        rates=(1e-3, 0.01, 0.03, 0.1, 0.3, 1),
        values={"optimizer": ("adam", "momentum")},
        variants={"come": {"loss": "come"}},
    )
    presets: ClassVar[Presets] = {
        **TENT_PRESETS,
        "acdc": {"learning_rate": 7.5e-6, "loss": "hard", "batch_statistics": False},
        "streets": {"learning_rate": 1e-4},
    }

    def step(self, images: Tensor) -> Tensor:
        """Predict, and take one step down the mean loss; the prediction is the one before the last step."""
        if self.settings.steps > 1:
            self.keep(self.learner.written())
        for _ in range(self.settings.steps):
            logits: Tensor = self.model(images).logits
            loss = self.learner.step(self._loss(logits))
        self.diagnostics["entropy" if self.settings.loss == "entropy" else "loss"] = loss
        return logits

    def _loss(self, logits: Tensor) -> Tensor:
        if self.settings.loss == "hard":
            return F.cross_entropy(logits.float(), logits.argmax(1))
        return LOSSES[self.settings.loss](logits).mean()
