"""ViDA: low-rank and high-rank adapters that share the work by uncertainty (Liu et al., ICLR 2024)."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Generator, Tensor, nn

from testdg.core.weights import Anchor, ema_update, frozen_copy, restore
from testdg.data.augmentation import Augmentation
from testdg.methods import Adapter, Learner, Presets, Search, Settings, option, register
from testdg.methods.parts.bottleneck import Bottleneck
from testdg.methods.parts.views import following_loss, over_views
from testdg.methods.parts.warm_up import supervised, train_on_source
from testdg.models import VisionModel


@dataclass(frozen=True, kw_only=True)
class ViDASettings(Settings):
    low_rank: int = option(1, "inner width of the adapter for knowledge that domains share", low=1)
    high_rank: int = option(128, "inner width of the adapter for knowledge of one domain", low=1)
    views: int = option(10, "augmented views whose disagreement is the uncertainty", low=2)
    views_at_once: int = option(10, "views that share one pass; fewer need less memory", low=1)
    flip: bool = option(True, "mirror every other view; not for digits or text")
    threshold: float = option(0.2, "uncertainty from which the high-rank adapter gets the larger scale", low=0)
    loss: Literal["soft", "symmetric", "hard"] = option(
        "soft", "cross-entropy with the teacher's soft label, in both directions, or with its hard label"
    )
    optimizer: Literal["adam", "sgd"] = option("adam", "Adam, or SGD with Nesterov momentum 0.9")
    learning_rate: float = option(1e-4, "learning rate of the model's own weights", low=0)
    adapter_learning_rate: float = option(1e-5, "learning rate of the adapters", low=0)
    momentum: float = option(0.999, "momentum of the teacher's weights", low=0, high=1)
    adapter_momentum: float = option(0.999, "momentum of the teacher's adapters", low=0, high=1)
    restore: float = option(0.0, "share of weights restored after a batch (released for CIFAR: 0.1)", low=0, high=1)
    source_images: int = option(12800, "labelled source images for the warm-up of the adapters; 0 for none", low=0)
    warm_up_learning_rate: float = option(1e-4, "learning rate of the adapters on source images", low=0)
    as_released: bool = option(False, "the scale of the high-rank adapter stays 1, and no scale is bounded")


class DomainAdapters(Bottleneck):
    """A low-rank and a high-rank branch parallel to each layer: one bottleneck whose ranks have two scales.

    The down-projections start as normal numbers with standard deviation 1 / rank^2.
    """

    def __init__(self, model: VisionModel, low: int, high: int, generator: Generator) -> None:
        super().__init__(model, low + high, generator)
        self.ranks = (low, high)
        spread = self._per_rank(torch.tensor([low**-2.0, high**-2.0], device=model.device))
        with torch.no_grad():
            for down in self.down.values():
                down.normal_(generator=generator).mul_(spread[:, None])

    def merged(self, model: VisionModel, scales: Tensor | None = None) -> dict[str, Tensor]:
        """Weights of the model with both branches added; `scales` are one number for each branch."""
        return super().merged(model, None if scales is None else self._per_rank(scales))

    def _per_rank(self, values: Tensor) -> Tensor:
        return torch.cat([value.expand(rank) for value, rank in zip(values, self.ranks, strict=True)])


def uncertainty(logits: Tensor) -> Tensor:
    """A tenth of the variance of logits (views, N, C, ...) over the views, averaged over everything else."""
    return 0.1 * logits.float().var(0).mean()


def allotment(uncertainty: Tensor, threshold: float, as_released: bool = False) -> Tensor:
    """Scales of the low-rank and the high-rank branch: the high one grows where the teacher is unsure.

    `as_released` leaves the high one at 1, and the low one without bounds. What is not finite changes nothing.
    """
    known = torch.where(uncertainty.isfinite(), uncertainty, 0.0)
    toward_high = torch.where(known >= threshold, known, -known)
    if as_released:
        return torch.stack([1 - toward_high, torch.ones_like(toward_high)])
    return torch.stack([1 - toward_high, 1 + toward_high]).clamp(0, 2)


@register
class ViDA(Adapter):
    """Follow a teacher with the whole model and two adapters parallel to each attention linear."""

    name = "vida"
    title = "ViDA"
    citation = "Liu et al., ViDA: Homeostatic Visual Domain Adapter for Continual Test Time Adaptation, ICLR 2024"
    example_error = 22.5
    tasks = ("classification", "segmentation")
    reconstruction = ("segmentation",)
    needs = "attention or convolutions"
    source_data = "warming up the adapters (source_images=0 goes without: they start as nothing)"
    source_labels = True
    differs_from_source = "the adapters are trained on source images first"
    Settings = ViDASettings
    settings: ViDASettings
    search = Search(rates=(0.01, 0.1, 0.3, 1), values={"restore": (0.0, 0.01, 0.1)})
    presets: ClassVar[Presets] = {
        "digits-c": {"loss": "symmetric", "learning_rate": 1e-3, "flip": False, "source_images": 0},
        "cifar10-c": {"threshold": 0.05, "restore": 0.1, "as_released": True},
        "cifar100-c": {
            "threshold": 0.05,
            "restore": 0.1,
            "learning_rate": 3e-4,
            "adapter_learning_rate": 1e-6,
            "as_released": True,
        },
        "imagenet-c": {
            "loss": "symmetric",
            "optimizer": "sgd",
            "learning_rate": 5e-7,
            "adapter_learning_rate": 2e-7,
            "adapter_momentum": 0.8,
            "as_released": True,
        },
        "acdc": {"loss": "hard", "learning_rate": 3e-4, "adapter_learning_rate": 3e-4, "restore": 0.01},
    }

    @classmethod
    def refuses(cls, model: VisionModel) -> str | None:
        return None if model.attention_linears() or model.convolutions() else "it has no attention and no convolution"

    def build(self) -> None:
        s = self.settings
        self.adapters = DomainAdapters(self.model, s.low_rank, s.high_rank, self.generator)
        self.teacher, self.teacher_adapters = frozen_copy(self.model), frozen_copy(self.adapters)
        self.source = Anchor(list(self.model.parameters()) if s.restore else [])
        self.source_adapters = frozen_copy(self.adapters)  # a warm-up moves them, so they are state
        self.scales: Tensor = nn.Buffer(torch.ones(2, device=self.model.device))
        self.augment = Augmentation(flip=s.flip, move=self.model.task == "classification")
        self.learner = Learner(
            [
                {"params": self.model.parameters(), "lr": s.learning_rate},
                {"params": self.adapters.parameters(), "lr": s.adapter_learning_rate},
            ],
            s.optimizer,
        )

    def step(self, images: Tensor) -> Tensor:
        """Share the work between the adapters by the teacher's uncertainty, predict with it, and follow it."""
        s = self.settings
        with torch.no_grad():
            views = over_views(self.infer, lambda: self.augment(images, self.generator), s.views, s.views_at_once)
            unsure = uncertainty(views)
            self.scales.copy_(allotment(unsure, s.threshold, s.as_released))
            taught = self.infer(images)
        student = self.adapters.run(self.model, images, self.scales).logits
        self.learner.step(following_loss(student, taught, s.loss))
        ema_update(self.teacher, self.model, s.momentum)
        ema_update(self.teacher_adapters, self.adapters, s.adapter_momentum)
        if s.restore:
            restore(self.model.parameters(), self.source.values(), s.restore, self.generator)
            restore(self.adapters.parameters(), self.source_adapters.parameters(), s.restore, self.generator)
        self.diagnostics.update(uncertainty=unsure, low_scale=self.scales[0].clone(), high_scale=self.scales[1].clone())
        return taught

    def infer(self, images: Tensor) -> Tensor:
        """Predict with the teacher and its adapters, at the scales of the last batch."""
        return self.teacher_adapters.run(self.teacher, images, self.scales).logits

    def learn_source(self, batches: Iterable[tuple[Tensor, Tensor]]) -> None:
        """Warm the adapters up: cross-entropy on source images, the model itself frozen."""
        s = self.settings
        optimizer = torch.optim.Adam(self.adapters.parameters(), s.warm_up_learning_rate)
        loss = supervised(lambda images: self.adapters.run(self.model, images).logits)
        self.model.requires_grad_(False)
        train_on_source(loss, optimizer, batches, s.source_images, clip=1.0)
        self.model.requires_grad_(True)
        for follower in (self.teacher_adapters, self.source_adapters):
            ema_update(follower, self.adapters, 0.0)

    def predicting_model(self) -> VisionModel:
        """The teacher with its adapters merged into the weights, at the scales of the last batch."""
        model = frozen_copy(self.teacher)
        model.load_state_dict(self.teacher_adapters.merged(model, self.scales), strict=False)
        return model
