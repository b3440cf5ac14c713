"""ROID: certain and diverse predictions, weight ensembling and prior correction (Marsden et al., WACV 2024)."""

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from testdg.core.weights import Anchor
from testdg.data.augmentation import Augmentation
from testdg.methods import Presets, Search, option, register
from testdg.methods.parts.affine import OPTIMIZERS, AffineAdapter, AffineSettings
from testdg.methods.parts.entropy import entropy, symmetric_cross_entropy


@dataclass(frozen=True, kw_only=True)
class RoidSettings(AffineSettings):
    learning_rate: float = option(2.5e-4, "learning rate of the normalisation layers", low=0)
    optimizer: Literal["adam", "sgd", "momentum"] = option("sgd", OPTIMIZERS)
    temperature: float = option(
        1 / 3, "softmax temperature of the image weights; a lower one favours the best images", low=1e-3
    )
    momentum: float = option(0.9, "momentum of the running mean prediction", low=0, high=1)
    source_share: float = option(0.01, "share of the way back to the source after a step", low=0, high=1)
    consistency: bool = option(True, "augmented views must have the same prediction as the images")
    flip: bool = option(True, "mirror every other view; not for digits or text")
    prior_correction: bool = option(True, "multiply the logits by the smoothed class frequencies of the batch")


def likelihood_ratio(logits: Tensor) -> Tensor:
    """Soft likelihood ratio of each prediction: like the entropy, but steep where the model is sure."""
    p = logits.float().softmax(1).clamp(max=0.99)
    return -(p * (p / (1 - p) + 1e-5).log()).sum(1)


def image_weights(logits: Tensor, usual: Tensor, temperature: float) -> Tensor:
    """Weights of images: more for certain ones and for those unlike the running mean; none for the most alike."""
    p = logits.float().softmax(1)
    diversity = _spread(1 - F.cosine_similarity(usual[None], p))
    certainty = _spread(-entropy(logits))
    return torch.where(diversity < diversity.mean(), 0.0, (diversity * certainty / temperature).exp())


def correct_prior(logits: Tensor) -> Tensor:
    """Multiply logits by the class frequencies of the batch, smoothed by as much as a small batch needs."""
    count, classes = logits.shape
    mean = logits.float().softmax(1).mean(0)
    smoothing = max(1 / count, 1 / classes) / mean.max()
    return logits * (mean + smoothing) / (1 + smoothing * classes)


def _spread(values: Tensor) -> Tensor:
    """Stretch values to [0, 1]; all zero where they are equal, as in a batch of one."""
    low, high = values.aminmax()
    return (values - low) / (high - low).clamp(min=1e-12)


@register
class Roid(AffineAdapter):
    """Learn from certain and diverse images, stay near the source, and correct the prediction by class frequencies."""

    name = "roid"
    title = "ROID"
    citation = (
        "Marsden et al., Universal Test-time Adaptation through Weight Ensembling, Diversity Weighting, and Prior "
        "Correction, WACV 2024"
    )
    example_error = 30.0
    differs_from_source = "logits are multiplied by the class frequencies of the batch"
    Settings = RoidSettings
    settings: RoidSettings
    search = Search(
        rates=(0.01, 0.1, 0.3, 1),
        values={"source_share": (0.001, 0.01, 0.1)},
        variants={"uncorrected": {"prior_correction": False}},
    )
    presets: ClassVar[Presets] = {
        "digits-c": {"learning_rate": 1e-3, "optimizer": "adam", "flip": False},
        "cifar10-c": {"learning_rate": 1e-3, "optimizer": "adam"},
        "cifar100-c": {"learning_rate": 1e-3, "optimizer": "adam"},
        "imagenet-c": {"learning_rate": 2.5e-4, "optimizer": "sgd"},
    }

    def build(self) -> None:
        super().build()
        classes = self.model.classes
        self.anchor = Anchor(self.learner.parameters_)
        self.usual: Tensor = nn.Buffer(torch.full((classes,), 1 / classes, device=self.model.device))
        self.augment = Augmentation(noise=0.0, blur=0.0, flip=self.settings.flip)

    def infer(self, images: Tensor) -> Tensor:
        return self._correct(self.model(images).logits)

    def why_not_exportable(self) -> str | None:
        if self.settings.prior_correction:
            return "it corrects predictions by the batch at hand"
        return super().why_not_exportable()

    def step(self, images: Tensor) -> Tensor:
        """Predict, take one step on the weighted images, and go a little back to the source."""
        s = self.settings
        logits: Tensor = self.model(images).logits
        weights = image_weights(logits.detach(), self.usual, s.temperature)
        losses = likelihood_ratio(logits)
        if s.consistency:
            view = self.augment(images, self.generator)
            losses = losses + symmetric_cross_entropy(self.model(view).logits, logits)
        loss = (weights * losses).mean()
        self.learner.step(loss)
        self.go_back()
        self.usual.lerp_(logits.detach().float().softmax(1).mean(0), 1 - s.momentum)
        self.diagnostics.update(loss=loss.detach(), learnt_from=(weights > 0).sum())
        return self._correct(logits)

    def go_back(self) -> None:
        """After a step, go a little back to the source."""
        self.anchor.pull(self.settings.source_share)

    def _correct(self, logits: Tensor) -> Tensor:
        return correct_prior(logits) if self.settings.prior_correction else logits
