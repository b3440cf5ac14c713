"""Continual-MAE: hide uncertain tokens, reconstruct and predict them (Liu et al., CVPR 2024)."""

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from testdg.data.augmentation import Augmentation
from testdg.methods.adapter import Adapter
from testdg.methods.continual_mae.hog import BINS, CELLS, hog
from testdg.methods.continual_mae.masking import Patches, choose_hidden, find_patches
from testdg.methods.parts.entropy import masked_mean
from testdg.methods.parts.learner import Learner
from testdg.methods.parts.restore import Anchor, restore, weights_and_biases
from testdg.methods.parts.views import following_loss, over_views
from testdg.methods.registry import register
from testdg.methods.search import Search
from testdg.methods.settings import Settings, option
from testdg.models import VisionModel


@dataclass(frozen=True, kw_only=True)
class ContinualMAESettings(Settings):
    """Settings of Continual-MAE."""

    mask: float = option(0.5, "share of the tokens that is hidden", low=0, high=1)
    reconstruction_weight: float = option(0.5, "weight of the reconstruction", low=0)
    views: int = option(10, "augmented views whose disagreement is the uncertainty of a token", low=2)
    views_at_once: int = option(10, "of them, how many go into one pass; fewer need less memory", low=1)
    flip: bool = option(True, "mirror every other view; not for digits or text")
    move: bool = option(True, "rotate, shift, scale and mirror the views too, though tokens are compared by position")
    learning_rate: float = option(1e-5, "of weights, decoder and mask token", low=0)
    restore: float = option(0.01, "share of the weights put back to the source after a batch", low=0, high=1)
    as_released: bool = option(False, "hide the most uncertain tokens, instead of drawing by uncertainty")


@register
class ContinualMAE(Adapter):
    """Hide the tokens on which augmented views disagree; learn to predict and to reconstruct without them.

    Examples:
        >>> from testdg.evaluation import run
        >>> result = run("digits-c", "continual_mae", images=100, domains=["snow", "frost"])
        >>> print(f"error {result.mean_score:.1f} %")
        error 21.5 %
    """

    name = "continual_mae"
    title = "Continual-MAE"
    citation = (
        "Liu et al., Continual-MAE: Adaptive Distribution Masked Autoencoders for Continual Test-Time Adaptation, "
        "CVPR 2024"
    )
    tasks = ("classification", "segmentation")
    needs = "patch tokens"
    Settings = ContinualMAESettings
    settings: ContinualMAESettings
    search = Search(rates=(0.01, 0.1, 0.3, 1), values={"mask": (0.25, 0.5, 0.75)})
    presets: ClassVar[dict[str, dict[str, Any]]] = {
        "digits-c": {"as_released": True, "flip": False},
        "cifar10-c": {"as_released": True},
        "cifar100-c": {"as_released": True},
        "imagenet-c": {"as_released": True, "learning_rate": 1e-6, "restore": 0.001},
        "acdc": {"as_released": True, "learning_rate": 1e-4},
    }
    patches: Patches

    @classmethod
    def refuses(cls, model: VisionModel) -> str | None:
        """A model without patch tokens has nothing to hide."""
        return None if find_patches(model) else "it has no patch tokens that could be hidden (a vision transformer has)"

    def build(self) -> None:
        """Make the mask token, the decoder and the optimiser; class token and position embedding stay as they are."""
        s, device = self.settings, self.model.device
        self.patches = find_patches(self.model)  # type: ignore[assignment]  # refuses() has looked
        self.token = nn.Parameter(torch.zeros(self.patches.entering, device=device))
        outputs = self.model.channels * BINS * CELLS**2
        self.decoder = nn.utils.skip_init(nn.Conv2d, self.patches.leaving, outputs, 1, device=device)  # type: ignore[no-untyped-call]
        nn.init.trunc_normal_(self.decoder.weight, std=0.02, generator=self.generator)
        nn.init.zeros_(self.decoder.get_parameter("bias"))
        weights = weights_and_biases(self.model)
        for weight in weights:
            weight.requires_grad_(True)
        self.source = Anchor(weights)
        self.augment = Augmentation(flip=s.flip, move=s.move and self.model.task == "classification")
        self.learner = Learner([{"params": [*weights, *self.decoder.parameters(), self.token], "lr": s.learning_rate}])

    def step(self, images: Tensor) -> Tensor:
        """Predict, hide the tokens that views disagree on, and learn to do without them."""
        s = self.settings
        hidden = choose_hidden(self.uncertainty(images), s.mask, None if s.as_released else self.generator)
        with torch.no_grad():
            taught = self.infer(images)
        output = self.patches.run(self.model, images, hidden, self.token)
        consistency = following_loss(output.logits, taught)
        error = self.decoder(output.features).float() - hog(images, output.features.shape[-2:])
        reconstruction = masked_mean(error.square().mean(1, keepdim=True), hidden)
        self.learner.step(consistency + s.reconstruction_weight * reconstruction)
        if s.restore:
            restore(self.source.parameters_, self.source.values(), s.restore, self.generator)
        self.diagnostics.update(consistency=consistency.detach(), reconstruction=reconstruction.detach())
        return taught

    def uncertainty(self, images: Tensor) -> Tensor:
        """Variance of each token's mean over augmented views, (N, h, w)."""
        s = self.settings

        def means(view: Tensor) -> Tensor:
            return self.patches.run(self.model, view).features.float().mean(1)

        return over_views(means, images, s.views, s.views_at_once, self.augment, self.generator).var(0)
