"""RoTTA: a balanced memory, slow statistics and a teacher weighted by age (Yuan et al., CVPR 2023)."""

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from testdg.data.augmentation import Augmentation
from testdg.errors import UserError
from testdg.methods.adapter import TeacherAdapter
from testdg.methods.parts.entropy import entropy, soft_cross_entropy
from testdg.methods.parts.learner import Learner
from testdg.methods.parts.normalisation import (
    affine_parameters,
    batch_norms,
    follow_statistics,
    lacks_affine,
    use_slow_statistics,
)
from testdg.methods.parts.teacher import frozen_copy
from testdg.methods.registry import register
from testdg.methods.rotta.memory import BalancedMemory
from testdg.methods.search import Search
from testdg.methods.settings import Settings, option
from testdg.models import VisionModel


@dataclass(frozen=True, kw_only=True)
class RottaSettings(Settings):
    """Settings of RoTTA."""

    learning_rate: float = option(1e-3, "step size on the normalisation layers", low=0)
    optimizer: Literal["adam", "sgd"] = option("adam", "Adam, or SGD with Nesterov momentum 0.9")
    capacity: int = option(64, "images in the memory", low=1)
    update_every: int = option(64, "images between two updates", low=1)
    momentum: float = option(0.999, "of the teacher", low=0, high=1)
    statistics: float = option(0.05, "how far BatchNorm statistics go towards those of the memory", low=0, high=1)
    flip: bool = option(True, "mirror every other view; not for digits or text")
    as_released: bool = option(False, "train BatchNorm layers alone; a model without them is refused")


def timeliness(ages: Tensor) -> Tensor:
    """Weight of remembered images by their relative age: a half for a new one, less for older ones."""
    return torch.sigmoid(-ages)


@register
class Rotta(TeacherAdapter):
    """Learn from a memory that is balanced over classes, and let BatchNorm statistics follow it slowly.

    Examples:
        >>> from testdg.evaluation import run
        >>> result = run("digits-c", "rotta", images=100, domains=["snow", "frost"])
        >>> print(f"error {result.mean_score:.1f} %")
        error 22.5 %
    """

    name = "rotta"
    title = "RoTTA"
    citation = "Yuan et al., Robust Test-Time Adaptation in Dynamic Scenarios, CVPR 2023"
    needs = "normalisation layers"
    Settings = RottaSettings
    settings: RottaSettings
    search = Search(rates=(0.01, 0.1, 1, 10), values={"momentum": (0.99, 0.997, 0.999)})
    presets: ClassVar[dict[str, dict[str, Any]]] = {
        "digits-c": {"flip": False, "momentum": 0.99, "update_every": 20, "capacity": 40},
        "cifar10-c": {"learning_rate": 1e-3},
        "cifar100-c": {"learning_rate": 1e-3},
        "imagenet-c": {"learning_rate": 1e-3},
    }
    checks_input_late = True

    @classmethod
    def refuses(cls, model: VisionModel) -> str | None:
        """A model without affine normalisation layers has nothing to train."""
        return lacks_affine(model)

    @classmethod
    def exceptions(cls, model: VisionModel) -> dict[str, str]:
        """Statistics follow the stream even without learning."""
        return {"learning rate 0 is the source": "BatchNorm statistics follow the stream"} if batch_norms(model) else {}

    def build(self) -> None:
        """Make memory, teacher and optimiser."""
        s = self.settings
        if s.as_released and not batch_norms(self.model):
            remedy = "as_released=false trains its other normalisation layers"
            raise UserError(f"{self.name} as released cannot adapt {self.model.name}: it has no BatchNorm; {remedy}")
        use_slow_statistics(self.model, s.statistics)
        self.teacher = frozen_copy(self.model)
        layers = batch_norms(self.model) if s.as_released else None
        free = [parameter.requires_grad_(True) for parameter in affine_parameters(self.model, layers)]
        self.averaged = affine_parameters(self.teacher, batch_norms(self.teacher) if s.as_released else None)
        self.learner = Learner([{"params": free, "lr": s.learning_rate}], s.optimizer)
        self.memory = BalancedMemory(s.capacity, self.model.classes, self.model.device)
        self.augment = Augmentation(flip=s.flip)

    def step(self, images: Tensor) -> Tensor:
        """Predict with the teacher, remember the images one by one, and learn from the memory now and then."""
        with torch.no_grad():
            logits = self.infer(images)
        known = self.to_host(*logits.argmax(1), *entropy(logits))
        labels, entropies = known[: len(images)], known[len(images) :]
        for number, (image, label, value) in enumerate(zip(images, labels, entropies, strict=True), self.images + 1):
            self.memory.add(image, int(label), value)
            if number % self.settings.update_every == 0:
                self._update()
        self.memory.write()
        return logits

    def _update(self) -> None:
        """Follow the teacher on the memory, recent images first; statistics and teacher move too."""
        images, ages = self.memory.content()
        with follow_statistics(self.model), follow_statistics(self.teacher):
            with torch.no_grad():
                taught = self.infer(images)
            student = self.model(self.augment(images, self.generator)).logits
        loss = (timeliness(ages) * soft_cross_entropy(student, taught)).mean()
        self.keep([*self.learner.held(), *self.averaged])  # a large batch has another update to come
        self.learner.step(loss)
        pairs = zip(self.averaged, self.learner.parameters_, strict=True)
        ours, theirs = zip(*((mine.detach(), other.detach()) for mine, other in pairs), strict=True)
        torch._foreach_lerp_(ours, theirs, 1 - self.settings.momentum)
        self.diagnostics.update(loss=loss.detach(), remembered=len(self.memory))
