"""OBAO: a buffer of sure test images and a graph of class relations (Zhu et al., ECCV 2024)."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Generator, Tensor, nn

from testdg.core.weights import Anchor, ema_update, frozen_copy, restore, weights_and_biases
from testdg.data.augmentation import Augmentation
from testdg.errors import UserError
from testdg.methods import Learner, Presets, Search, Settings, TeacherAdapter, option, register
from testdg.methods.parts.blocks import run_to_head
from testdg.methods.parts.entropy import entropy, largest_entropy, masked_mean, symmetric_cross_entropy
from testdg.methods.parts.normalisation import batch_norms, use_batch_statistics
from testdg.methods.parts.views import choose_pixels, following_loss, multiscale_probabilities, sure_pixels
from testdg.models import VisionModel


@dataclass(frozen=True, kw_only=True)
class ObaoSettings(Settings):
    learning_rate: float = option(
        1e-5, "learning rate of all weights and biases; in a classifier, without its head", low=0
    )
    optimizer: Literal["adam", "sgd"] = option("adam", "Adam, or SGD with Nesterov momentum 0.9")
    margin: float = option(0.1, "a confident prediction has less than this share of the largest entropy, ln C", low=0)
    capacity: int = option(1000, "images in the buffer", low=1)
    replay: float = option(1.0, "weight of the loss on images of the buffer; on maps, on confident pixels", low=0)
    relation: float = option(1.0, "weight of the loss on class relations", low=0)
    graph: Literal["weight", "prototypes"] = option(
        "weight", "source relations: of the classifier, or of source features"
    )
    source_images: int = option(2000, "source images for graph=prototypes", low=1)
    threshold: float = option(0.69, "confidence of the source above which a pixel is labelled from one view", low=0)
    momentum: float = option(0.999, "momentum of the teacher's moving average", low=0, high=1)
    restore: float = option(0.0, "share of the weights restored to the source after a batch", low=0, high=1)
    flip: bool = option(True, "mirror every other augmented image; not for digits or text")
    batch_statistics: bool = option(True, "in a classifier, BatchNorm layers use the statistics of the batch")
    as_released: bool = option(False, "a full buffer accepts new images even if they are less confident")


def class_means(features: Tensor, labels: Tensor, kept: Tensor, classes: int) -> tuple[Tensor, Tensor]:
    """Mean of the kept features (M, D) of each class, (C, D), and their numbers."""
    members = F.one_hot(labels, classes).to(features.dtype) * kept[:, None]  # (M, C)
    counts = members.sum(0)
    return members.T @ features / counts.clamp(min=1)[:, None], counts


def relations(rows: Tensor) -> Tensor:
    """The graph of class relations: the cosine between all pairs of rows, (C, C)."""
    unit = F.normalize(rows.float(), dim=1)
    return unit @ unit.T


def relation_loss(source: Tensor, current: Tensor, present: Tensor) -> Tensor:
    """Minus the correlation, without centring, of two graphs over the classes that are present; 0 for less than two."""
    pairs = present[:, None] & present
    source, current = (torch.where(pairs, graph, 0.0) for graph in (source, current))
    alike = (source * current).sum() / (source.square().sum() * current.square().sum()).clamp(min=1e-12).sqrt()
    return torch.where(present.sum() > 1, -alike, 0.0)


class CertainMemory(nn.Module):
    """Images with pseudo-labels and entropies, in a fixed number of places; the least certain leave first.

    An empty place has infinite entropy.
    """

    varying = uncopied = ("images",)  # written after the last pass of a step

    def __init__(self, capacity: int, device: torch.device, strict: bool = True) -> None:
        super().__init__()
        self.strict = strict
        self.images: Tensor = nn.Buffer(torch.zeros(0, device=device))
        self.labels: Tensor = nn.Buffer(torch.zeros(capacity, dtype=torch.int64, device=device))
        self.entropies: Tensor = nn.Buffer(torch.full((capacity,), torch.inf, device=device))

    def misfit(self, buffers: Mapping[str, Tensor | None]) -> str | None:
        """Name the buffer unless it is empty or full of images."""
        images = buffers["images"]
        if images is None or images.dtype != torch.float32:
            return "images"
        whole = images.ndim == 4 and len(images) == len(self.entropies)
        return None if images.shape == (0,) or whole else "images"

    def expect(self, images: Tensor) -> None:
        """Refuse images of another size than the stored ones."""
        if len(self.images) and self.images.shape[1:] != images.shape[1:]:
            had, got = (" x ".join(map(str, x.shape[2:])) for x in (self.images, images))
            raise UserError(
                f"obao stores images of one size, {had}; got {got}: resize them, or reset()", code="image-shape"
            )

    def filled(self) -> Tensor:
        return self.entropies.isfinite().sum()

    @torch.no_grad()
    def add(self, images: Tensor, labels: Tensor, entropies: Tensor, kept: Tensor) -> None:
        """Offer images; accepted ones replace the least certain ones.

        A strict memory gives up a place only to a more certain image, another one always.
        """
        if not len(self.images):
            self.images = torch.zeros(len(self.entropies), *images.shape[1:], device=images.device)
        offered, order = torch.where(kept, entropies.float(), torch.inf).sort()
        offered, order = offered[: len(self.entropies)], order[: len(self.entropies)]
        held, places = self.entropies.topk(len(offered))
        moves = offered < held if self.strict else offered.isfinite()
        for mine, new in ((self.images, images), (self.labels, labels), (self.entropies, entropies.float())):
            chosen = moves.view(-1, *[1] * (mine.ndim - 1))
            mine[places] = torch.where(chosen, new[order], mine[places])

    def draw(self, count: int, generator: Generator) -> tuple[Tensor, Tensor]:
        """Draw images and labels without replacement; `count` is at most the number of stored images."""
        keys = torch.rand(self.entropies.shape, generator=generator, device=self.entropies.device)
        places = torch.where(self.entropies.isfinite(), keys, -1.0).topk(count).indices
        return self.images[places], self.labels[places]


@register
class Obao(TeacherAdapter):
    """Follow a teacher, replay sure images of the stream, and keep the relations between the classes."""

    name = "obao"
    title = "OBAO"
    citation = (
        "Zhu et al., Reshaping the Online Data Buffering and Organizing Mechanism for Continual Test-Time Adaptation, "
        "ECCV 2024"
    )
    example_error = 23.0
    tasks = ("classification", "segmentation")
    source_data = "the mean features of the classes (graph=weight goes without)"
    source_labels = True
    needs_features = True
    Settings = ObaoSettings
    settings: ObaoSettings
    search = Search(rates=(0.01, 0.1, 0.3, 1), values={"margin": (0.05, 0.1, 0.2)})
    presets: ClassVar[Presets] = {
        "digits-c": {"learning_rate": 1e-3, "flip": False},
        "cifar10-c": {"graph": "prototypes", "as_released": True},
        "cifar100-c": {"capacity": 200, "relation": 200.0, "graph": "prototypes", "as_released": True},
        "imagenet-c": {
            "learning_rate": 1e-4,
            "optimizer": "sgd",
            "margin": 0.2,
            "replay": 0.5,
            "graph": "prototypes",
            "as_released": True,
        },
        "acdc": {"learning_rate": 1e-4, "margin": 0.02, "relation": 0.01, "restore": 0.01},
    }
    checks_input_late = True

    @classmethod
    def exceptions(cls, model: VisionModel) -> dict[str, str]:
        if model.task == "segmentation":
            return {"learning rate 0 is the source": "an unsure pixel is a mean over views"}
        if batch_norms(model):
            return {"learning rate 0 is the source": "BatchNorm layers use the statistics of the batch"}
        return {}

    def build(self) -> None:
        s, model = self.settings, self.model
        self.dense = model.task == "segmentation"
        self.teacher, self.anchor = frozen_copy(model), frozen_copy(model) if self.dense else None
        if s.batch_statistics and not self.dense:
            use_batch_statistics(model)
            use_batch_statistics(self.teacher)
        fixed = set() if self.dense else set(model.head_layer.parameters())
        free = [p for p in weights_and_biases(model) if p not in fixed]
        self.source = Anchor(free if s.restore else [])
        self.learner = Learner([{"params": free, "lr": s.learning_rate}], s.optimizer)
        self.source_graph: Tensor = nn.Buffer(relations(model.head_weight.detach()))
        self.memory = CertainMemory(0 if self.dense else s.capacity, model.device, strict=not s.as_released)
        self.augment = Augmentation(flip=s.flip)
        self.limit = largest_entropy(model.classes, s.margin)

    def source_images(self) -> int:
        needed = self.settings.graph == "prototypes" and not self.dense
        return self.settings.source_images if needed else 0

    @torch.no_grad()
    def learn_source(self, batches: Iterable[tuple[Tensor, Tensor]]) -> None:
        total = count = torch.zeros((), device=self.model.device)
        for images, labels in batches:
            features = self.model(images).features.float()
            means, counts = class_means(features, labels, torch.ones_like(labels), self.model.classes)
            total, count = total + means * counts[:, None], count + counts
        self.source_graph.copy_(relations(total / count.clamp(min=1)[:, None]))

    def step(self, images: Tensor) -> Tensor:
        """Predict and take one step; then the teacher follows."""
        s = self.settings
        taught = self._step_maps(images) if self.dense else self._step_images(images)
        ema_update(self.teacher, self.model, s.momentum)
        if s.restore:
            restore(self.source.parameters_, self.source.values(), s.restore, self.generator)
        return taught

    def _step_images(self, images: Tensor) -> Tensor:
        """Follow the teacher on the images and an augmented view, replay the buffer, and fill it."""
        self.memory.expect(images)
        (held,) = self.to_host(self.memory.filled())
        with torch.no_grad():
            taught = self.teacher(images).logits
        logits, view = (self.model(x).logits for x in (images, self.augment(images, self.generator)))
        following = 0.5 * (symmetric_cross_entropy(logits, taught) + symmetric_cross_entropy(view, taught)).mean()
        replay = relation = following.new_zeros(())
        if held:
            remembered, labels = self.memory.draw(min(int(held), len(images)), self.generator)
            output = self.model(remembered)
            replay = F.cross_entropy(output.logits.float(), labels)
            relation = self._relation_loss(output.features, labels, torch.ones_like(labels))
        self._learn(following, replay, relation)
        unsure = entropy(logits.detach())
        together: Tensor = (logits.detach().float() + taught.float()) / 2
        self.memory.add(images, together.argmax(1), unsure, unsure < self.limit)
        return together

    def _step_maps(self, images: Tensor) -> Tensor:
        """Follow the teacher's labels as CoTTA does, and learn from the sure pixels of the student's coarse map."""
        assert self.anchor is not None
        self.to_host()
        with torch.no_grad():  # the teacher's: of one view where the source is sure of a pixel, else mean of fourteen
            plain, mean = multiscale_probabilities(self.teacher, images)
            taught = choose_pixels(sure_pixels(self.anchor, images, self.settings.threshold), plain, mean)
        output = run_to_head(self.model, images)
        following = following_loss(output.logits, taught, "hard")
        labels, sure = output.scores.argmax(1), entropy(output.scores.detach()) < self.limit
        replay = masked_mean(F.cross_entropy(output.scores.float(), labels, reduction="none"), sure)
        features = output.features.movedim(1, -1).flatten(0, -2)  # (N h w, D)
        self._learn(following, replay, self._relation_loss(features, labels.flatten(), sure.flatten()))
        return taught

    def _relation_loss(self, features: Tensor, labels: Tensor, kept: Tensor) -> Tensor:
        means, counts = class_means(features.float(), labels, kept, self.model.classes)
        return relation_loss(self.source_graph, relations(means), counts > 0)

    def _learn(self, following: Tensor, replay: Tensor, relation: Tensor) -> None:
        self.learner.step(following + self.settings.replay * replay + self.settings.relation * relation)
        self.diagnostics.update(loss=following.detach(), replay=replay.detach(), relation=relation.detach())

    def infer(self, images: Tensor) -> Tensor:
        """Predict with the teacher; images also with the student, mean of both."""
        taught = super().infer(images)
        return taught if self.dense else (self.model(images).logits.float() + taught.float()) / 2

    def why_not_exportable(self) -> str | None:
        return super().why_not_exportable() if self.dense else "it predicts by the mean of teacher and student"
