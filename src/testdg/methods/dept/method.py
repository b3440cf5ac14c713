"""DePT: prompts in every stage, pseudo-labels from neighbours and a teacher (Gao et al., 2022)."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
import torch.nn.functional as F
from torch import Generator, Tensor, nn

from testdg.core.weights import ema_update, frozen_copy
from testdg.data.augmentation import Augmentation
from testdg.methods import Learner, PlainState, Presets, Search, Settings, option, register
from testdg.methods.dept.prompts import add_prompts, begin_as_tokens
from testdg.methods.parts.added_layers import AddedLayersAdapter, added_layers, watched
from testdg.methods.parts.blocks import AtHead, final_norm, run_to_head, transformer_blocks
from testdg.methods.parts.warm_up import supervised_loss, train_on_source
from testdg.models import VisionModel
from testdg.models.blocks import width_of

NARROW = 256
"""Width of the bottleneck of a projection."""


@dataclass(frozen=True, kw_only=True)
class DeptSettings(Settings):
    stages: int = option(4, "stages of a ViT with prompts of their own; a SegFormer has four", low=1)
    prompts: int = option(50, "prompts of a stage", low=1)
    learning_rate: float = option(5e-3, "learning rate of prompts, classifier and projections", low=0)
    momentum: float = option(0.99, "momentum of the teacher's moving average", low=0, high=1)
    neighbours: int = option(10, "stored features whose predictions make a pseudo-label", low=1)
    capacity: int = option(1024, "stored features", low=1)
    pixels: int = option(64, "stored features per image, of a map", low=1)
    feature_weight: float = option(0.1, "weight of the loss between the features of student and teacher", low=0)
    prompt_weight: float = option(0.1, "weight of the loss between the prompts of student and teacher", low=0)
    balance_weight: float = option(1.0, "weight of the loss on a one-sided mean prediction", low=0)
    diversity_weight: float = option(0.05, "weight of the loss on similar prompts", low=0)
    flip: bool = option(True, "mirror every other augmented image; not for digits or text")
    source_images: int = option(12800, "labelled source images for the first training of prompts; 0 for none", low=0)
    warm_up_learning_rate: float = option(5e-3, "learning rate of the first training", low=0)


def wide(width: int) -> int:
    """Width of the other layers of a projection: 2048, as published for tokens of 768 values; less for narrow ones."""
    return min(2048, 8 * width)


class Projection(nn.Module):
    """Two layers with a GELU between, length one, and a linear layer whose rows have length one."""

    def __init__(self, width: int, generator: Generator, device: torch.device) -> None:
        super().__init__()
        self.inner = nn.utils.skip_init(nn.Linear, width, wide(width), device=device)  # type: ignore[no-untyped-call]
        self.outer = nn.utils.skip_init(nn.Linear, wide(width), NARROW, device=device)  # type: ignore[no-untyped-call]
        self.rows = nn.Parameter(torch.empty(wide(width), NARROW, device=device))
        for weight in (self.inner.weight, self.outer.weight, self.rows):
            nn.init.trunc_normal_(weight, std=0.02, generator=generator)
        for bias in (self.inner.bias, self.outer.bias):
            nn.init.zeros_(bias)

    def forward(self, x: Tensor) -> Tensor:
        """(..., D) to (..., wide)."""
        narrow = F.normalize(self.outer(F.gelu(self.inner(x))).float(), dim=-1)
        return F.linear(narrow, F.normalize(self.rows, dim=1))


def stage_weights(stages: int, device: torch.device) -> Tensor:
    """Weights of the stages, larger for later ones: softmax of 1, 2, ..."""
    return torch.arange(1.0, stages + 1, device=device).softmax(0)


def agreement(student: Tensor, teacher: Tensor) -> Tensor:
    """Mean of one minus the cosine of each pair of prompts, (N, P, D)."""
    return (1 - F.cosine_similarity(student, teacher, dim=-1)).mean()


def sameness(prompts: Tensor) -> Tensor:
    """Minus the mean of one minus the cosine over all pairs of an image's prompts (N, P, D), with themselves too."""
    unit = F.normalize(prompts, dim=-1)
    apart = 1 - unit @ unit.mT
    return -(apart - torch.diag_embed(apart.diagonal(dim1=1, dim2=2))).mean()


def imbalance(logits: Tensor) -> Tensor:
    """Minus the entropy of the mean prediction."""
    mean = logits.float().softmax(1).movedim(1, -1).flatten(0, -2).mean(0)
    return (mean * (mean + 1e-8).log()).sum()


class Centre(nn.Module):
    """Cross-entropy between projected features of student and teacher, the teacher's less a running mean."""

    def __init__(self, width: int, device: torch.device) -> None:
        super().__init__()
        self.value: Tensor = nn.Buffer(torch.zeros(wide(width), device=device))

    def loss(self, student: Tensor, teacher: Tensor) -> Tensor:
        """Mean over the images; (N, wide) each."""
        target = ((teacher - self.value) / 0.07).softmax(1)
        loss = -(target * (student / 0.1).log_softmax(1)).sum(1).mean()
        mean = teacher.mean(0)
        self.value.lerp_(torch.where(mean.isfinite(), mean, self.value), 0.1)
        return loss


class Neighbours(PlainState):
    """A ring of features and predictions; a pseudo-label is the class of the mean prediction of the nearest ones."""

    plain = ("count",)
    uncopied = ("features", "predictions")  # replaced, never written in place

    def __init__(self, capacity: int, width: int, classes: int, device: torch.device) -> None:
        super().__init__()
        self.count = 0
        self.features: Tensor = nn.Buffer(torch.zeros(capacity, width, device=device))
        self.predictions: Tensor = nn.Buffer(torch.zeros(capacity, classes, device=device))

    def add(self, features: Tensor, predictions: Tensor) -> None:
        """Take entries (M, D) and (M, C) in, over the oldest ones; of more than fit, the last."""
        capacity = len(self.features)
        features, predictions = features[-capacity:], predictions[-capacity:]
        places = torch.arange(self.count, self.count + len(features), device=features.device) % capacity
        self.features = self.features.index_copy(0, places, F.normalize(features.float(), dim=1))
        self.predictions = self.predictions.index_copy(0, places, predictions.float())
        self.count += len(features)

    def label(self, features: Tensor, nearest: int) -> Tensor:
        count = min(self.count, len(self.features))
        alike = F.normalize(features.float(), dim=1) @ self.features[:count].T
        which = alike.topk(min(nearest, count), 1).indices
        return self.predictions[which].mean(1).argmax(1)


class ProjectedOutput(NamedTuple):
    """Result of a pass: prediction, input and output of the classifier, projected features and prompts."""

    output: AtHead
    feature: Tensor
    prompts: list[Tensor]


@register
class Dept(AddedLayersAdapter):
    """Learn the prompts of a frozen transformer from its neighbours' labels and from an averaged teacher.

    Examples:
        >>> from testdg.runs import run
        >>> few = {"source_images": 200}
        >>> result = run("digits-c", "dept", settings=few, images=100, domains=["snow", "frost"])
        >>> print(f"error {result.mean_score:.1f} %")
        error 31.5 %
    """

    name = "dept"
    title = "DePT"
    citation = "Gao et al., Visual Prompt Tuning for Test-time Domain Adaptation, 2022"
    tasks = ("classification", "segmentation")
    needs = "a plain vision transformer or a SegFormer"
    source_data = "the first training of prompts and classifier (source_images=0 goes without)"
    source_labels = True
    reconstruction = True
    differs_from_source = "prompts are trained on source images first"
    needs_features = True
    Settings = DeptSettings
    settings: DeptSettings
    search = Search(rates=(1e-3, 0.01, 0.1, 1), values={"momentum": (0.99, 0.997, 0.999)})
    presets: ClassVar[Presets] = {
        "digits-c": {"flip": False, "source_images": 1000},
        "acdc": {"learning_rate": 1e-4},
    }

    @classmethod
    def refuses(cls, model: VisionModel) -> str | None:
        blocks = transformer_blocks(model)
        if not blocks:
            return "it has no transformer blocks that prompts could pass through"
        if model.task == "classification" and len({width_of(block) for block in blocks}) > 1:
            return "its blocks are of different widths (prompts need a plain vision transformer)"
        return None

    def build(self) -> None:
        s, model, device = self.settings, self.model, self.model.device
        add_prompts(model, s.stages, s.prompts, self.generator)
        size = model.head_weight.shape[1]
        widths = [prompts.get_parameter("tokens").shape[1] for prompts in added_layers(model)]
        widths += [] if size == widths[-1] else [size]  # features and last prompts share one where they can
        self.projections = nn.ModuleList(Projection(width, self.generator, device) for width in widths)
        self.teacher, self.teacher_projections = frozen_copy(model), frozen_copy(self.projections)
        self.norm = final_norm(model)
        self.centre = Centre(size, device)
        self.bank = Neighbours(s.capacity, size, model.classes, device)
        self.augment = Augmentation(flip=s.flip, move=model.task == "classification")
        tuned = [*added_layers(model).parameters(), *model.head_layer.parameters()]
        self.tuned = len(tuned)
        free = [*tuned, *self.projections.parameters()]
        self.learner = Learner([{"params": free, "lr": s.learning_rate, "weight_decay": 1e-4}], "sgd")

    def learn_source(self, batches: Iterable[tuple[Tensor, Tensor]]) -> None:
        """Train prompts, classifier and projections; student and teacher then begin with the same values."""
        s = self.settings
        optimizer = torch.optim.SGD(
            self.learner.parameters_, s.warm_up_learning_rate, momentum=0.9, nesterov=True, weight_decay=1e-4
        )

        def loss(images: Tensor, labels: Tensor) -> Tensor:
            self._follow(s.momentum)
            mine, theirs = self._two_views(images)
            return supervised_loss(mine.output.logits, labels, 0.1) + self._alike(mine, theirs, s.diversity_weight / 10)

        def begin(images: Tensor) -> None:
            begin_as_tokens(self.model, images)
            self._follow(0.0)

        train_on_source(loss, optimizer, batches, s.source_images, clip=1.0, begin=begin)
        self._follow(0.0)

    def step(self, images: Tensor) -> Tensor:
        """Predict, and take one step towards the labels of the neighbours and towards the teacher."""
        s = self.settings
        with torch.no_grad():
            plain = run_to_head(self.model, images)
        mine, theirs = self._two_views(images)
        labels = self._label(images, plain.features)
        following = F.cross_entropy(mine.output.scores.float(), labels)
        alike = self._alike(mine, theirs, s.diversity_weight)
        loss = following + alike + s.balance_weight * imbalance(mine.output.scores)
        self._move(loss)
        self._follow(s.momentum)
        self.diagnostics.update(loss=loss.detach(), following=following.detach(), alike=alike.detach())
        return plain.logits

    def _two_views(self, images: Tensor) -> tuple[ProjectedOutput, ProjectedOutput]:
        """One augmented view for the student and another for the teacher."""
        with torch.no_grad():
            theirs = self._see(self.teacher, self.teacher_projections, self.augment(images, self.generator))
        return self._see(self.model, self.projections, self.augment(images, self.generator)), theirs

    def _follow(self, momentum: float) -> None:
        ema_update(self.teacher, self.model, momentum)
        ema_update(self.teacher_projections, self.projections, momentum)

    def _see(self, model: VisionModel, projections: nn.ModuleList, images: Tensor) -> ProjectedOutput:
        with watched(model) as seen:
            output = run_to_head(model, images)
        left = [values[-1] for values in seen]
        if self.norm is not None:
            left[-1] = model.get_submodule(self.norm)(left[-1])
        feature = output.features.flatten(2).mean(2) if output.features.ndim > 2 else output.features
        prompts = [project(tokens) for project, tokens in zip(projections, left, strict=False)]
        return ProjectedOutput(output, projections[-1](feature), prompts)

    def _alike(self, mine: ProjectedOutput, theirs: ProjectedOutput, diversity: float) -> Tensor:
        """Student and teacher should see the same features and prompts, and no two prompts the same."""
        s = self.settings
        agree = torch.stack([agreement(a, b) for a, b in zip(mine.prompts, theirs.prompts, strict=True)])
        same = torch.stack([sameness(prompts) for prompts in mine.prompts])
        of_stages = s.prompt_weight * agree + diversity * same
        weighted = stage_weights(len(agree), agree.device) * of_stages
        return s.feature_weight * self.centre.loss(mine.feature, theirs.feature) + weighted.sum()

    @torch.no_grad()
    def _label(self, images: Tensor, features: Tensor) -> Tensor:
        """Remember what the teacher sees in the images; label the student's features (N, D, ...) by neighbours."""
        taught = run_to_head(self.teacher, images)
        entries, predictions = _flat(taught.features), _flat(taught.scores.float().softmax(1))
        if features.ndim > 2:
            count = self.settings.pixels * len(images)
            which = torch.randint(len(entries), (count,), generator=self.generator, device=images.device)
            entries, predictions = entries[which], predictions[which]
        self.bank.add(entries, predictions)
        labels = self.bank.label(_flat(features), self.settings.neighbours)
        return labels.view(len(images), *features.shape[2:])

    def _move(self, loss: Tensor) -> None:
        """One step; the gradient of each tensor of the network is at most of length one."""
        gradients = list(self.learner.gradients(loss))
        for place, gradient in enumerate(gradients[: self.tuned]):
            if gradient is not None:
                gradients[place] = gradient * (1 / (gradient.norm() + 1e-6)).clamp(max=1)
        self.learner.move(gradients, loss)


def _flat(values: Tensor) -> Tensor:
    """(N, D, ...) to (M, D)."""
    return values.movedim(1, -1).flatten(0, -2)
