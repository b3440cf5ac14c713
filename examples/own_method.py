"""A method of your own that passes the checks of all methods: `python examples/own_method.py [IMAGES]`.

As a plugin: `testdg --plugin examples/own_method.py run --method mean_logits`.
"""

import sys
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from testdg.methods import Adapter, Settings, option, register
from testdg.models import Preprocessing, TinyViT, load_model
from testdg.runs import run
from testdg.testing import check_adapter


@dataclass(frozen=True, kw_only=True)
class MeanLogitsSettings(Settings):
    """Settings of the method."""

    share: float = option(0.1, "of a batch in the running mean of the logits", low=0, high=1)
    strength: float = option(0.5, "how much of the mean is subtracted", low=0, high=1)


@register
class MeanLogits(Adapter):
    """Subtract the mean logits of the stream from every prediction."""

    name, title, citation = "mean_logits", "Mean logits", "an example"
    differs_from_source = "the mean of the logits is subtracted"
    Settings = MeanLogitsSettings
    settings: MeanLogitsSettings

    def build(self) -> None:
        self.register_buffer("mean", torch.zeros(self.model.classes, device=self.model.device))

    @torch.no_grad()
    def step(self, images: Tensor) -> Tensor:
        logits = self.model(images).logits
        self.mean.lerp_(logits.float().mean(0), self.settings.share)
        return self.centred(logits)

    def infer(self, images: Tensor) -> Tensor:
        return self.centred(self.model(images).logits)

    def centred(self, logits: Tensor) -> Tensor:
        return logits - self.settings.strength * (self.mean - self.mean.mean())

    def why_not_exportable(self) -> str:
        return "the mean of the logits is not part of the model"


if __name__ == "__main__":
    tiny = load_model(TinyViT(width=16, depth=1, patch=8), preprocessing=Preprocessing((32, 32)))
    print(f"passes {len(check_adapter(partial(MeanLogits, tiny)))} checks")
    for method in ("source", "mean_logits"):
        result = run("digits-c", method, images=int([*sys.argv, 200][1]))
        print(f"{method:<12} error {result.mean_score:.1f} %")
