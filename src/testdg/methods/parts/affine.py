"""Base of the methods that train the scale and shift of normalisation layers."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from torch import Tensor, nn

from testdg.methods import Adapter, Learner, Presets, Settings, option
from testdg.methods.parts.entropy import LOSSES, entropy, largest_entropy
from testdg.methods.parts.normalisation import affine_parameters, batch_norms, lacks_affine, use_batch_statistics
from testdg.models import VisionModel

OPTIMIZERS = "Adam, SGD with Nesterov momentum 0.9, or SGD with plain momentum 0.9"
TENT_PRESETS: Presets = {
    "digits-c": {"learning_rate": 1e-3},
    "cifar10-c": {"learning_rate": 1e-3},
    "cifar100-c": {"learning_rate": 3e-4},
    "imagenet-c": {"learning_rate": 1e-4, "optimizer": "sgd"},
}
"""Presets of TENT, and of methods without presets of their own."""


@dataclass(frozen=True, kw_only=True)
class AffineSettings(Settings):
    """Settings of a method that trains normalisation layers."""

    learning_rate: float = option(1e-4, "learning rate of the normalisation layers", low=0)
    optimizer: Literal["adam", "sgd", "momentum"] = option("adam", OPTIMIZERS)
    batch_statistics: bool = option(True, "BatchNorm layers use the statistics of the batch, as in the paper")


@dataclass(frozen=True, kw_only=True)
class EarlierAffineSettings(AffineSettings):
    """Settings of a method that trains the earlier normalisation layers."""

    fixed: float = option(0.28, "share of the normalisation layers, from the last, that stay fixed", low=0, high=0.99)


@dataclass(frozen=True, kw_only=True)
class ReliableSettings(AffineSettings):
    """Settings of a method that learns from reliable predictions."""

    loss: Literal["entropy", "come"] = option("entropy", "entropy (paper), or COME's, of a prediction as an opinion")
    reliable_by: Literal["loss", "entropy"] = option(
        "loss", "criterion for reliability: this value is below the margin"
    )
    margin: float = option(0.4, "a reliable prediction has less than this share of the largest entropy, ln C", low=0)

    def losses(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        """The loss of each prediction, and whether it is reliable."""
        losses = LOSSES[self.loss](logits)
        measured = losses if self.reliable_by == "loss" else entropy(logits)
        return losses, measured.detach() < largest_entropy(logits.shape[1], self.margin)


class AffineAdapter(Adapter):
    """A method that moves scale and shift of normalisation layers. It defines `step`, and may define `chosen`."""

    needs = "normalisation layers"
    settings: AffineSettings

    @classmethod
    def refuses(cls, model: VisionModel) -> str | None:
        return lacks_affine(model)

    @classmethod
    def exceptions(cls, model: VisionModel) -> Mapping[str, str]:
        if batch_norms(model) and not cls.differs_from_source:
            return {"learning rate 0 is the source": "BatchNorm layers use the statistics of the batch"}
        return super().exceptions(model)

    def chosen(self) -> list[nn.Parameter]:
        return affine_parameters(self.model)

    def build(self) -> None:
        s = self.settings
        if s.batch_statistics:
            use_batch_statistics(self.model)
        self.learner = Learner([{"params": self.chosen(), "lr": s.learning_rate}], s.optimizer)


class EarlierAffineAdapter(AffineAdapter):
    """A method that moves only the earlier normalisation layers."""

    settings: EarlierAffineSettings

    def chosen(self) -> list[nn.Parameter]:
        """Scale and shift of the earlier normalisation layers (in a ViT-B all but three blocks and the final norm)."""
        layers = [layer for _, layer in self.model.norm_layers() if isinstance(layer.weight, nn.Parameter)]
        kept = layers[: max(1, len(layers) - round(self.settings.fixed * len(layers)))]
        return affine_parameters(self.model, kept)
