"""EcoTTA: small meta networks on a frozen backbone, held close to it (Song et al., CVPR 2023). A reconstruction."""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from testdg.methods.added_layers import AddedLayersAdapter, added_layers, watched
from testdg.methods.ecotta.meta_networks import add_to_classifier, add_to_segformer, begin_as_identity, refused
from testdg.methods.parts.entropy import hard_pixel_loss, reliable_entropy
from testdg.methods.parts.learner import Learner
from testdg.methods.parts.multiscale import FOUR_RATIOS, multiscale_probabilities
from testdg.methods.parts.normalisation import use_batch_statistics
from testdg.methods.parts.warm_up import supervised, train_on_source
from testdg.methods.registry import register
from testdg.methods.search import Search
from testdg.methods.settings import Settings, option
from testdg.models import VisionModel


@dataclass(frozen=True, kw_only=True)
class EcottaSettings(Settings):
    """Settings of EcoTTA."""

    learning_rate: float = option(5e-3, "step size on the meta networks", low=0)
    optimizer: Literal["adam", "momentum"] = option("momentum", "Adam, or SGD with momentum 0.9; for the warm-up too")
    regularisation: float = option(0.5, "weight of the distance to the frozen network", low=0)
    margin: float = option(0.4, "a reliable prediction has less than this share of the largest entropy, ln C", low=0)
    batch_statistics: bool = option(True, "in a classifier, BatchNorm layers use the statistics of the batch")
    source_images: int = option(12800, "labelled source images for the warm-up of the meta networks", low=1)
    warm_up_learning_rate: float = option(5e-3, "of the meta networks on source images", low=0)
    as_released: bool = option(False, "SegFormer: meta networks, labels and loss of the released baseline")


@register
class Ecotta(AddedLayersAdapter):
    """Train small networks beside a frozen one on sure predictions, and keep what they change small.

    Examples:
        >>> from testdg.evaluation import run
        >>> result = run("digits-c", "ecotta", images=100, domains=["snow", "frost"])
        >>> print(f"error {result.mean_score:.1f} %")
        error 12.0 %
    """

    name = "ecotta"
    title = "EcoTTA"
    citation = (
        "Song et al., EcoTTA: Memory-Efficient Continual Test-time Adaptation via Self-distilled Regularization, "
        "CVPR 2023"
    )
    tasks = ("classification", "segmentation")
    needs = "transformer or convolution blocks"
    source_data = "warming up the meta networks, without which the network breaks"
    reconstruction = True
    differs_from_source = "the warm-up learns too, and BatchNorm uses the batch's statistics"
    Settings = EcottaSettings
    settings: EcottaSettings
    search = Search(rates=(1e-3, 0.01, 0.1, 1), values={"regularisation": (0.1, 0.5, 2.0)})
    presets: ClassVar[dict[str, dict[str, Any]]] = {
        "digits-c": {"learning_rate": 1e-4, "source_images": 1000},
        "cifar10-c": {},
        "cifar100-c": {},
        "imagenet-c": {},
        "acdc": {
            "learning_rate": 6e-7,
            "optimizer": "adam",
            "source_images": 40000,
            "warm_up_learning_rate": 6e-5,
            "as_released": True,
        },
    }

    @classmethod
    def refuses(cls, model: VisionModel) -> str | None:
        """Meta networks need parts of a network to stand beside."""
        return refused(model)

    def build(self) -> None:
        """Put the meta networks into the model and make their optimiser."""
        s = self.settings
        if self.model.task == "segmentation":
            add_to_segformer(self.model, self.generator, s.as_released)
        else:
            add_to_classifier(self.model, self.generator)
        if self._of_batch:
            use_batch_statistics(self.model)
        self.learner = Learner([{"params": added_layers(self.model).parameters(), "lr": s.learning_rate}], s.optimizer)

    @property
    def _of_batch(self) -> bool:
        """Whether statistics are the batch's; a street scene alone has too few pixels in its last stage."""
        return self.settings.batch_statistics and self.model.task == "classification"

    @property
    def _released(self) -> bool:
        """Whether this is the released baseline, which is for maps."""
        return self.settings.as_released and self.model.task == "segmentation"

    def learn_source(self, batches: Iterable[tuple[Tensor, Tensor]]) -> None:
        """Train the meta networks alone; their BatchNorm layers keep the statistics that they meet."""
        s = self.settings
        optimizers = {"adam": torch.optim.AdamW, "momentum": torch.optim.SGD}
        more = {"momentum": 0.9} if s.optimizer == "momentum" else {}
        optimizer = optimizers[s.optimizer](self.learner.parameters_, s.warm_up_learning_rate, **more)
        metas = added_layers(self.model).train()
        ours: dict[str, Any] = {"clip": 1.0, "begin": partial(begin_as_identity, self.model)}
        train_on_source(supervised(self.infer), optimizer, batches, s.source_images, **({} if self._released else ours))
        metas.train(self._of_batch)

    def step(self, images: Tensor) -> Tensor:
        """Predict, and take one step on the meta networks."""
        s = self.settings
        labels = self._label_pixels(images) if self._released else None
        with watched(self.model) as seen:
            logits = self.infer(images)
        distance = torch.stack([values[0] for values in seen]).sum()
        if labels is None:
            loss, reliable = reliable_entropy(logits, s.margin)
        else:
            loss, reliable = hard_pixel_loss(logits, labels)
            distance = distance.detach()
        self.learner.step(loss + s.regularisation * distance)
        self.diagnostics.update(loss=loss.detach(), distance=distance.detach(), learnt_from=reliable.float().mean())
        return logits if labels is None else labels

    def _label_pixels(self, images: Tensor) -> Tensor:
        """Log-probabilities, mean over eight views."""
        return multiscale_probabilities(self.model, images, FOUR_RATIOS)[1].clamp(min=1e-12).log()
