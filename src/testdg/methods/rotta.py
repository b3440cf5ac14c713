"""RoTTA: a balanced memory, slow statistics and a teacher weighted by age (Yuan et al., CVPR 2023)."""

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple

import torch
from torch import Tensor, nn

from testdg.core.weights import frozen_copy
from testdg.data.augmentation import Augmentation
from testdg.errors import UserError
from testdg.methods import Learner, Presets, Search, Settings, TeacherAdapter, option, register
from testdg.methods.parts.entropy import entropy, soft_cross_entropy
from testdg.methods.parts.normalisation import (
    SlowBatchNorm,
    affine_parameters,
    batch_norms,
    follow_statistics,
    lacks_affine,
    replace_batch_norms,
)
from testdg.models import VisionModel


@dataclass(frozen=True, kw_only=True)
class RottaSettings(Settings):
    learning_rate: float = option(1e-3, "learning rate of the normalisation layers", low=0)
    optimizer: Literal["adam", "sgd"] = option("adam", "Adam, or SGD with Nesterov momentum 0.9")
    capacity: int = option(64, "images in the memory", low=1)
    update_every: int = option(64, "images between two updates", low=1)
    momentum: float = option(0.999, "momentum of the teacher's moving average", low=0, high=1)
    statistics: float = option(0.05, "share of the way of BatchNorm statistics to those of the memory", low=0, high=1)
    flip: bool = option(True, "mirror every other view; not for digits or text")
    as_released: bool = option(False, "train BatchNorm layers only; a model without them is refused")


class Item(NamedTuple):
    """A stored image: its place, predicted class, relative entropy and age in images."""

    place: int
    label: int
    uncertainty: float
    age: int


class BalancedMemory(nn.Module):
    """RoTTA's memory: equal numbers of images of each predicted class.

    An image replaces the worst one of its class (or, while its class has less than its share, of the
    fullest classes) and only if that one is worse. Old and uncertain images are bad. New images are stored separately
    until `write` is called, so that a step that fails has written nothing.
    """

    varying = uncopied = ("images",)

    def __init__(self, capacity: int, classes: int, device: torch.device) -> None:
        super().__init__()
        self.capacity, self.classes = capacity, classes
        self.items: list[Item] = []
        self.new: dict[int, Tensor] = {}
        self.images: Tensor = nn.Buffer(torch.zeros(0, device=device))

    def __len__(self) -> int:
        return len(self.items)

    def add(self, image: Tensor, label: int, entropy: float) -> None:
        """Offer an image with its predicted class and entropy; everything grows older by one."""
        new = Item(-1, label, entropy / math.log(self.classes), 0)
        place = self._find_place(new)
        if place is not None:
            self.new[place] = image
            self.items = [item for item in self.items if item.place != place] + [new._replace(place=place)]
        self.items = [item._replace(age=item.age + 1) for item in self.items]

    def content(self) -> tuple[Tensor, Tensor]:
        """The images, and the ages relative to the capacity."""
        places = [item.place for item in self.items]
        images = torch.stack([self.new[place] if place in self.new else self.images[place] for place in places])
        return images, torch.tensor([item.age / self.capacity for item in self.items], device=images.device)

    @torch.no_grad()
    def write(self) -> None:
        for place, image in self.new.items():
            if not len(self.images):
                self.images = torch.zeros(self.capacity, *image.shape, device=image.device)
            self.images[place] = image
        self.new = {}

    def misfit(self, buffers: Mapping[str, Tensor | None]) -> str | None:
        """Name the buffer unless it is empty or full of images."""
        images = buffers["images"]
        if images is None or images.dtype != torch.float32:
            return "images"
        return None if images.shape == (0,) or (images.ndim == 4 and len(images) == self.capacity) else "images"

    def _find_place(self, new: Item) -> int | None:
        """A free place, the place of a worse image, or None."""
        counts = Counter(item.label for item in self.items)
        candidates = {new.label}
        if counts[new.label] < self.capacity / self.classes:
            if len(self.items) < self.capacity:
                return min(set(range(self.capacity)) - {item.place for item in self.items})
            candidates = {label for label, count in counts.items() if count == max(counts.values())}
        worst = max((item for item in self.items if item.label in candidates), key=self._badness, default=None)
        return worst.place if worst is not None and self._badness(worst) > self._badness(new) else None

    def _badness(self, item: Item) -> float:
        return 1 / (1 + math.exp(-item.age / self.capacity)) + item.uncertainty

    def get_extra_state(self) -> list[Any]:
        return [list(item) for item in self.items]

    def set_extra_state(self, state: list[Any]) -> None:
        self.items, self.new = [Item(*values) for values in state], {}


def timeliness(ages: Tensor) -> Tensor:
    """Weight of stored images by their relative age: a half for a new one, less for older ones."""
    return torch.sigmoid(-ages)


@register
class Rotta(TeacherAdapter):
    """Learn from a memory that is balanced over classes, and let BatchNorm statistics follow it slowly."""

    name = "rotta"
    title = "RoTTA"
    citation = "Yuan et al., Robust Test-Time Adaptation in Dynamic Scenarios, CVPR 2023"
    example_error = 22.5
    needs = "normalisation layers"
    Settings = RottaSettings
    settings: RottaSettings
    search = Search(rates=(0.01, 0.1, 1, 10), values={"momentum": (0.99, 0.997, 0.999)})
    presets: ClassVar[Presets] = {
        "digits-c": {"flip": False, "momentum": 0.99, "update_every": 20, "capacity": 40},
        **{name: {"learning_rate": 1e-3} for name in ("cifar10-c", "cifar100-c", "imagenet-c")},
    }
    checks_input_late = True

    @classmethod
    def refuses(cls, model: VisionModel) -> str | None:
        return lacks_affine(model)

    @classmethod
    def exceptions(cls, model: VisionModel) -> dict[str, str]:
        return {"learning rate 0 is the source": "BatchNorm statistics follow the stream"} if batch_norms(model) else {}

    def build(self) -> None:
        s = self.settings
        if s.as_released and not batch_norms(self.model):
            remedy = "as_released=false trains its other normalisation layers"
            problem = f"{self.name} as released cannot adapt {self.model.name}: it has no BatchNorm"
            raise UserError(f"{problem}; {remedy}", code="unsuitable-model")
        replace_batch_norms(self.model, SlowBatchNorm, s.statistics)
        self.teacher = frozen_copy(self.model)
        layers = batch_norms(self.model) if s.as_released else None
        free = affine_parameters(self.model, layers)
        self.averaged = affine_parameters(self.teacher, batch_norms(self.teacher) if s.as_released else None)
        self.learner = Learner([{"params": free, "lr": s.learning_rate}], s.optimizer)
        self.memory = BalancedMemory(s.capacity, self.model.classes, self.model.device)
        self.augment = Augmentation(flip=s.flip)

    def step(self, images: Tensor) -> Tensor:
        """Predict with the teacher, store the images one by one, and learn from the memory at intervals."""
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
        self.keep([*self.learner.written(), *self.averaged])  # a large batch has several updates
        self.learner.step(loss)
        pairs = zip(self.averaged, self.learner.parameters_, strict=True)
        ours, theirs = zip(*((mine.detach(), other.detach()) for mine, other in pairs), strict=True)
        torch._foreach_lerp_(ours, theirs, 1 - self.settings.momentum)
        self.diagnostics.update(loss=loss.detach(), remembered=len(self.memory))
