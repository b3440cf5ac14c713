"""CoTTA: an averaged teacher over views, and weights that fall back to the source (Wang et al., CVPR 2022)."""

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from testdg.core.weights import ema_update, frozen_copy, restore, weights_and_biases
from testdg.data.augmentation import Augmentation
from testdg.methods import Learner, Presets, Search, Settings, TeacherAdapter, option, register
from testdg.methods.parts.normalisation import batch_norms, use_batch_statistics
from testdg.methods.parts.views import (
    Following,
    choose_pixels,
    following_loss,
    multiscale_probabilities,
    over_views,
    sure_pixels,
)


@dataclass(frozen=True, kw_only=True)
class CottaSettings(Settings):
    learning_rate: float = option(1e-5, "learning rate of all weights and biases", low=0)
    optimizer: Literal["adam", "sgd"] = option("adam", "Adam, or SGD with Nesterov momentum 0.9")
    threshold: float = option(0.92, "confidence of the source below which the teacher sees views", low=0, high=1)
    views: int = option(32, "augmented views of a batch, for classification", low=1)
    views_at_once: int = option(8, "views that share one pass; fewer need less memory", low=1)
    flip: bool = option(True, "mirror every other view; not for digits or text")
    momentum: float = option(0.999, "momentum of the teacher's moving average", low=0, high=1)
    restore: float = option(0.01, "share of the weights restored to the source after a batch", low=0, high=1)
    symmetric: bool = option(False, "cross-entropy both ways, as in the released code for ImageNet-C")
    batch_statistics: bool = option(True, "BatchNorm layers use the statistics of the batch")


@register
class Cotta(TeacherAdapter):
    """Follow an averaged teacher, which looks at many views where the source is unsure; restore weights at random."""

    name = "cotta"
    title = "CoTTA"
    citation = "Wang et al., Continual Test-Time Domain Adaptation, CVPR 2022"
    example_error = 23.0
    tasks = ("classification", "segmentation")
    differs_from_source = "an unsure prediction is a mean over views"
    Settings = CottaSettings
    settings: CottaSettings
    search = Search(rates=(1e-3, 0.01, 0.1, 1), values={"restore": (0.001, 0.01, 0.1)})
    presets: ClassVar[Presets] = {
        "digits-c": {"learning_rate": 1e-3, "threshold": 0.5, "views": 8, "flip": False},
        "cifar10-c": {"learning_rate": 1e-3},
        "cifar100-c": {"learning_rate": 3e-4},
        "imagenet-c": {
            "learning_rate": 1e-4,
            "optimizer": "sgd",
            "threshold": 0.1,
            "restore": 0.001,
            "symmetric": True,
        },
        "acdc": {"learning_rate": 7.5e-6, "threshold": 0.69, "batch_statistics": False},
    }
    checks_input_late = True

    def build(self) -> None:
        """Make teacher, anchor and optimiser; class token and position embedding stay as they are."""
        s = self.settings
        self.teacher, self.anchor = frozen_copy(self.model), frozen_copy(self.model)
        if s.batch_statistics:
            for model in (self.model, self.teacher, self.anchor):
                use_batch_statistics(model)
        self.learner = Learner([{"params": weights_and_biases(self.model), "lr": s.learning_rate}], s.optimizer)
        self.augment = Augmentation(flip=s.flip)

    def step(self, images: Tensor) -> Tensor:
        """Predict with the teacher, follow it, move it, and put some weights back."""
        s = self.settings
        dense = self.model.task == "segmentation"
        taught = self._label_pixels(images) if dense else self._label_images(images)
        label_form: Following = "hard" if dense else "symmetric" if s.symmetric else "soft"
        loss = following_loss(self.model(images).logits, taught, label_form)
        self.learner.step(loss)
        ema_update(self.teacher, self.model, s.momentum)
        restore(self.learner.parameters_, weights_and_biases(self.anchor), s.restore, self.generator)
        self.diagnostics["loss"] = loss.detach()
        return taught

    @torch.no_grad()
    def _label_images(self, images: Tensor) -> Tensor:
        """The teacher's logits; their mean over the views of a batch that the source is unsure of."""
        s = self.settings
        (confidence,) = self.to_host(self.anchor(images).logits.float().softmax(1).amax(1).mean())
        self.diagnostics.update(confidence=confidence, augmented=confidence < s.threshold)
        if confidence >= s.threshold:
            return self.infer(images)
        of_batch = s.batch_statistics and batch_norms(self.model)  # a view has the statistics of its own pass
        at_once = 1 if of_batch else s.views_at_once
        views = over_views(self.infer, lambda: self.augment(images, self.generator), s.views, at_once)
        return views.float().mean(0)

    @torch.no_grad()
    def _label_pixels(self, images: Tensor) -> Tensor:
        """The teacher's log-probabilities: of one view where the source is sure of a pixel, else mean of fourteen."""
        self.to_host()
        plain, mean = multiscale_probabilities(self.teacher, images)
        sure = sure_pixels(self.anchor, images, self.settings.threshold)
        self.diagnostics["augmented"] = 1 - sure.float().mean()
        return choose_pixels(sure, plain, mean)
