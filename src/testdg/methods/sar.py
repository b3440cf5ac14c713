"""SAR: sharpness-aware, reliable entropy minimisation with recovery from collapse (Niu et al., ICLR 2023)."""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from testdg.core.weights import Anchor
from testdg.methods import Presets, Search, option, register
from testdg.methods.parts.affine import OPTIMIZERS, EarlierAffineAdapter, EarlierAffineSettings, ReliableSettings
from testdg.methods.parts.entropy import masked_mean


@dataclass(frozen=True, kw_only=True)
class SarSettings(ReliableSettings, EarlierAffineSettings):
    learning_rate: float = option(1e-3, "learning rate of the normalisation layers", low=0)
    optimizer: Literal["adam", "sgd", "momentum"] = option("momentum", OPTIMIZERS)
    radius: float = option(0.05, "distance at which the sharpness is measured", low=0)
    momentum: float = option(0.9, "momentum of the running mean of the entropy", low=0, high=1)
    recovery: float = option(0.2, "running mean below which the model has collapsed, for 1000 classes", low=0)
    as_released: bool = option(False, "`recovery` for any number of classes; a recovery keeps the running mean")


@contextmanager
def at_the_peak(
    parameters: Sequence[nn.Parameter], gradients: Sequence[Tensor | None], radius: float
) -> Iterator[None]:
    """Move the parameters up the gradient by `radius` in all, and back, bit for bit, at the end."""
    used = [(p.detach(), g) for p, g in zip(parameters, gradients, strict=True) if g is not None]
    before = [p.clone() for p, _ in used]
    norm = torch.stack(torch._foreach_norm([g for _, g in used])).norm()
    with torch.no_grad():
        for parameter, gradient in used:
            parameter += radius / (norm + 1e-12) * gradient
    try:
        yield
    finally:
        for (parameter, _), old in zip(used, before, strict=True):
            parameter.copy_(old)


@register
class Sar(EarlierAffineAdapter):
    """Go to flat minima of the entropy of reliable predictions, and back to the source after a collapse."""

    name = "sar"
    title = "SAR"
    citation = "Niu et al., Towards Stable Test-Time Adaptation in Dynamic Wild World, ICLR 2023"
    example_error = 21.5
    Settings = SarSettings
    settings: SarSettings
    search = Search(
        rates=(0.3, 0.625, 1, 3, 10, 30), values={"margin": (0.2, 0.4)}, variants={"come": {"loss": "come"}}
    )
    presets: ClassVar[Presets] = {
        "digits-c": {"learning_rate": 1e-3, "optimizer": "adam"},
        "imagenet-c": {"learning_rate": 1e-3},
    }

    def build(self) -> None:
        """Make the optimiser, the source values and the running mean of the entropy (infinite before the first)."""
        super().build()
        s, classes = self.settings, self.model.classes
        self.anchor = Anchor(self.learner.parameters_)
        self.collapsed = s.recovery if s.as_released else s.recovery * math.log(classes) / math.log(1000)
        self.usual: Tensor = nn.Buffer(torch.tensor(torch.inf, device=self.model.device))

    def step(self, images: Tensor) -> Tensor:
        """Predict, take a sharpness-aware step on reliable predictions, and go back if the model has collapsed."""
        logits: Tensor = self.model(images).logits
        losses, reliable = self.settings.losses(logits)
        gradients = self.learner.gradients(masked_mean(losses, reliable))
        self.keep(self.learner.parameters_)
        with at_the_peak(self.learner.parameters_, gradients, self.settings.radius):
            losses, still = self.settings.losses(self.model(images).logits)
            reliable = reliable & still
            loss = masked_mean(losses, reliable)
            gradients = self.learner.gradients(loss)
        self.learner.move(gradients, loss, when=reliable.any())
        recovered = self._recover(loss.detach(), reliable.any())
        self.diagnostics.update(loss=loss.detach(), learnt_from=reliable.sum(), recovered=recovered)
        return logits

    def _recover(self, loss: Tensor, learnt: Tensor) -> Tensor:
        """Follow the entropy; where it has become too small, go back to the source. Returns whether it did."""
        s = self.settings
        joined = torch.where(self.usual.isinf(), loss, torch.lerp(loss, self.usual, s.momentum))
        usual = torch.where(learnt & loss.isfinite(), joined, self.usual)
        collapsed = usual < self.collapsed
        self.anchor.recover(collapsed)
        self.learner.forget(collapsed)
        self.usual.copy_(usual if s.as_released else torch.where(collapsed, torch.inf, usual))
        return collapsed
