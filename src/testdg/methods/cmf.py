"""CMF: ROID that goes back to a model which a Kalman filter follows through the stream (Lee and Chang, ICLR 2024)."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from testdg.methods import PlainState, Search, option, register
from testdg.methods.roid import Roid, RoidSettings

VALUES = 38_400
"""Scale and shift of a ViT-B, which the published noise belongs to."""
LEAST, CERTAIN = 0.89, 0.9999
"""Weight of what was known before: never less than the first, and all of it above the second."""


@dataclass(frozen=True, kw_only=True)
class CMFSettings(RoidSettings):
    source_share: float = option(
        0.01, "share of the way of the hidden model back to the source at a step", low=0, high=1
    )
    hidden_share: float = option(
        0.01, "share of the way of the weights back to the hidden model after a step", low=0, high=1
    )
    noise: float = option(
        0.005, "noise of the filter for the 38,400 values of a ViT-B; in proportion for other models", low=0
    )


class MomentumFilter(PlainState):
    """A hidden model between the source and the weights, by a Kalman filter with one variance for all values."""

    plain = ("variance",)
    variance: float

    def __init__(self, values: Sequence[Tensor], noise: float) -> None:
        super().__init__()
        self.noise, self.variance = noise, 0.0
        for number, value in enumerate(values):
            self.register_buffer(str(number), value.detach().clone())

    def hidden(self) -> list[Tensor]:
        return list(self.buffers())

    @torch.no_grad()
    def follow(self, observed: Sequence[Tensor], source: Sequence[Tensor], share: float) -> float:
        """Go a share of the way to the source, then to what is observed as far as it is trusted. Gives the rest."""
        variance = (1 - share) ** 2 * self.variance + self.noise
        kept = max((1 - self.noise) / (variance + 1 - self.noise), LEAST)
        kept = 1.0 if kept >= CERTAIN else kept
        torch._foreach_lerp_(self.hidden(), list(source), share)
        torch._foreach_lerp_(self.hidden(), list(observed), 1 - kept)
        self.variance = kept * variance
        return kept


@register
class CMF(Roid):
    """Learn as ROID does, and stay near a hidden model that remembers the stream and leans to the source."""

    name = "cmf"
    title = "CMF"
    citation = (
        "Lee and Chang, Continual Momentum Filtering on Parameter Space for Online Test-time Adaptation, ICLR 2024"
    )
    example_error = 30.0
    Settings = CMFSettings
    settings: CMFSettings
    search = Search(
        rates=(0.01, 0.1, 0.3, 1),
        values={"hidden_share": (0.001, 0.01, 0.1)},
        variants={"uncorrected": {"prior_correction": False}},
    )

    def build(self) -> None:
        super().build()
        values = self.anchor.values()
        count = sum(value.numel() for value in values)
        self.filter = MomentumFilter(values, self.settings.noise * count / VALUES)

    @torch.no_grad()
    def go_back(self) -> None:
        """After a step, let the filter follow and go a little back to the hidden model."""
        weights = [parameter.detach() for parameter in self.anchor.parameters_]
        kept = self.filter.follow(weights, self.anchor.values(), self.settings.source_share)
        torch._foreach_lerp_(weights, self.filter.hidden(), self.settings.hidden_share)
        self.diagnostics["kept"] = kept
