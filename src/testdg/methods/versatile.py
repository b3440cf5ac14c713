"""Versatile: filtered, corrected and weighted labels, near the source (Yang et al., CVPR 2024). A reconstruction."""

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from testdg.core.weights import Anchor, ema_update, frozen_copy
from testdg.data.augmentation import Augmentation
from testdg.errors import UserError
from testdg.methods import Learner, Presets, Search, Settings, TeacherAdapter, option, register
from testdg.methods.parts.normalisation import affine_parameters


@dataclass(frozen=True, kw_only=True)
class VersatileSettings(Settings):
    trained: Literal["norm", "all"] = option("norm", "normalisation layers, or all parameters")
    optimizer: Literal["adam", "sgd"] = option("adam", "Adam, or SGD with Nesterov momentum 0.9")
    learning_rate: float = option(1e-4, "learning rate", low=0)
    flip: bool = option(True, "mirror every other augmented image; not for digits or text")
    threshold_momentum: float = option(0.99, "momentum of the thresholds' running means", low=0, high=1)
    unreliable_weight: float = option(0.5, "weight of an image whose label stays unreliable", low=0, high=1)
    diversity_momentum: float = option(0.9, "momentum of the running mean of the labels", low=0, high=1)
    diversity_temperature: float = option(1 / 3, "temperature of the weight of rare and certain labels", low=0.01)
    momentum: float = option(0.999, "momentum of the teacher's moving average", low=0, high=1)
    alignment: float = option(0.01, "share of the way back to the source after a batch", low=0, high=1)


class RunningMean(nn.Module):
    """A running mean of tensors; one that is not finite is left out."""

    def __init__(self, start: Tensor, momentum: float) -> None:
        super().__init__()
        self.momentum = momentum
        self.value: Tensor = nn.Buffer(start)

    def update(self, value: Tensor) -> Tensor:
        """Take a tensor in and give the mean."""
        self.value.lerp_(torch.where(value.isfinite(), value, self.value), 1 - self.momentum)
        return self.value


class AdaptiveThresholds(nn.Module):
    """Confidence from which a label is reliable: the usual confidence, lower for classes that are seldom predicted."""

    def __init__(self, classes: int, momentum: float, device: torch.device) -> None:
        super().__init__()
        self.floor = 1 / classes  # a guess
        self.confidence = RunningMean(torch.full((), self.floor, device=device), momentum)
        self.profile = RunningMean(torch.full((classes,), self.floor, device=device), momentum)

    def update(self, probabilities: Tensor) -> Tensor:
        """Take predictions (N, C) in and give the threshold of each class."""
        confidence = self.confidence.update(probabilities.amax(1).mean())
        profile = self.profile.update(probabilities.mean(0))
        return (confidence * profile / profile.max()).clamp(min=self.floor)


def correct(teacher: Tensor, source: Tensor, thresholds: Tensor) -> tuple[Tensor, Tensor]:
    """Labels from probabilities (N, C), and which of them are reliable.

    Where the teacher is below the threshold of its class, the source is mixed in, each by its confidence; where the
    two predict the same class, the label counts as reliable after all.
    """
    (sure, classes), (source_sure, source_classes) = teacher.max(1), source.max(1)
    reliable = sure >= thresholds[classes]
    share = (sure / (sure + source_sure))[:, None]
    labels = torch.where(reliable[:, None], teacher, share * teacher + (1 - share) * source)
    return labels, reliable | (classes == source_classes)


def diversity_weights(labels: Tensor, usual: Tensor, temperature: float) -> Tensor:
    """Weight of each label (N, C): large where it is certain and unlike the usual one; 1 for a single image."""
    if len(labels) == 1:
        return labels.new_ones(1)
    unusual = 1 - F.cosine_similarity(labels, usual[None])
    certain = torch.xlogy(labels, labels).sum(1)
    return (_spread(unusual) * _spread(certain) / temperature).exp()


def _spread(values: Tensor) -> Tensor:
    """Stretch values over [0, 1]; all ones where they are the same."""
    low, high = values.aminmax()
    return torch.where(high > low, (values - low) / (high - low), 1.0)


@register
class Versatile(TeacherAdapter):
    """Follow a teacher whose unsure labels the source corrects, and stay near the source."""

    name = "versatile"
    title = "Versatile"
    citation = (
        "Yang et al., A Versatile Framework for Continual Test-Time Domain Adaptation: Balancing Discriminability and "
        "Generalizability, CVPR 2024"
    )
    example_error = 22.5
    needs = "normalisation layers, unless all parameters are trained"
    reconstruction = True
    Settings = VersatileSettings
    settings: VersatileSettings
    search = Search(
        rates=(0.01, 0.1, 1, 10), values={"alignment": (0.001, 0.01, 0.1)}, variants={"all": {"trained": "all"}}
    )
    presets: ClassVar[Presets] = {
        "digits-c": {"learning_rate": 1e-3, "momentum": 0.99, "flip": False},
        "cifar10-c": {},
        "cifar100-c": {},
        "imagenet-c": {"optimizer": "sgd", "learning_rate": 1e-3},
    }

    def build(self) -> None:
        s, model = self.settings, self.model
        self.teacher, self.source = frozen_copy(model), frozen_copy(model)
        chosen = list(model.parameters()) if s.trained == "all" else affine_parameters(model)
        if not chosen:
            problem = f"versatile finds no normalisation layer in {model.name}"
            raise UserError(f"{problem}: use trained=all", code="unsuitable-model")
        self.augment = Augmentation(flip=s.flip)
        self.anchor = Anchor(chosen)
        self.learner = Learner([{"params": chosen, "lr": s.learning_rate}], s.optimizer)
        self.thresholds = AdaptiveThresholds(model.classes, s.threshold_momentum, model.device)
        uniform = torch.full((model.classes,), 1 / model.classes, device=model.device)
        self.usual = RunningMean(uniform, s.diversity_momentum)

    def step(self, images: Tensor) -> Tensor:
        """Predict with the teacher, correct its labels, learn from them and go a little way back to the source."""
        s = self.settings
        with torch.no_grad():
            taught = self.infer(images)
            teacher, source = taught.float().softmax(1), self.source(images).logits.float().softmax(1)
            labels, reliable = correct(teacher, source, self.thresholds.update(teacher))  # the means take it in first
            weights = diversity_weights(labels, self.usual.update(labels.mean(0)), s.diversity_temperature)
            weights = weights * torch.where(reliable, 1.0, s.unreliable_weight)
        log_p = self.model(self.augment(images, self.generator)).logits.float().log_softmax(1)
        loss = -(weights * (labels * log_p).sum(1)).mean()
        self.learner.step(loss)
        ema_update(self.teacher, self.model, s.momentum)
        self.anchor.pull(s.alignment)
        self.diagnostics.update(reliable=reliable.float().mean(), loss=loss.detach())
        return taught
