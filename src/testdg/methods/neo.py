"""NEO: the mean of the stream is taken out of the features before the classifier (Murphy et al., ICLR 2026)."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from testdg.core.weights import frozen_copy
from testdg.methods import Adapter, Search, Settings, option, register
from testdg.models import Output, VisionModel


@dataclass(frozen=True, kw_only=True)
class NEOSettings(Settings):
    share: float | None = option(
        None, "none: the mean of all images so far; or the share of each batch in a running mean (continual: 0.1)",
        low=0, high=1,
    )  # fmt: skip
    after: int = option(0, "number of images before features are moved", low=0)
    anchor: Literal["zero", "source"] = option("zero", "where the mean is moved to: zero (paper), or the source's mean")
    source_images: int = option(256, "number of clean, unlabelled images for the source's mean", low=1)


@register
class NEO(Adapter):
    """Move the mean of the features that enter the classifier to where it belongs."""

    name = "neo"
    title = "NEO"
    citation = "Murphy et al., NEO: No-Optimization Test-Time Adaptation through Latent Re-Centering, ICLR 2026"
    example_error = 15.0
    differs_from_source = "features are re-centred"
    source_data = "the mean of its features (anchor=zero goes without)"
    needs_features = True
    Settings = NEOSettings
    settings: NEOSettings
    search = Search(values={"share": (None, 0.01, 0.03, 0.1, 0.3, 1.0), "anchor": ("zero", "source")})

    def build(self) -> None:
        width, device = self.model.feature_size, self.model.device
        self.mean: Tensor = nn.Buffer(torch.zeros(width, device=device))
        self.home: Tensor = nn.Buffer(torch.zeros(width, device=device))
        self.seen: Tensor = nn.Buffer(torch.zeros((), dtype=torch.int64, device=device))

    def source_images(self) -> int:
        return self.settings.source_images if self.settings.anchor == "source" else 0

    @torch.no_grad()
    def learn_source(self, batches: Iterable[tuple[Tensor, Tensor]]) -> None:
        features = torch.cat([self.model(images).features.float() for images, _ in batches])
        self.home.copy_(features.mean(0))

    @torch.no_grad()
    def step(self, images: Tensor) -> Tensor:
        """Take a batch into the mean, then predict."""
        output: Output = self.model(images)
        self.seen += len(images)
        share = len(images) / self.seen if self.settings.share is None else self.settings.share
        self.mean += share * (output.features.float().mean(0) - self.mean)
        self.diagnostics["shift"] = (self.mean - self.home).norm()
        return output.logits - self._shift()

    def infer(self, images: Tensor) -> Tensor:
        return self.model(images).logits - self._shift()  # type: ignore[no-any-return]

    def _shift(self) -> Tensor:
        """Effect on the logits of the gap between the stream and where it belongs, (C,)."""
        begun = (self.seen > 0) & (self.seen >= self.settings.after)
        weight = self.model.head_weight
        with torch.autocast(weight.device.type, enabled=False):
            return torch.where(begun, weight.float() @ (self.mean - self.home), 0.0)

    def why_not_exportable(self) -> str | None:
        bias = self.model.head_layer.bias
        return super().why_not_exportable() if isinstance(bias, Tensor) else "its classifier has no bias for the shift"

    @torch.no_grad()
    def predicting_model(self) -> VisionModel:
        model = frozen_copy(self.model)
        bias = model.head_layer.bias
        if isinstance(bias, Tensor):
            bias -= self._shift()
        return model
