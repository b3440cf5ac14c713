"""The networks of TestDG (amplifier, extractor, discriminator, teacher), and the passes through them."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import ClassVar

import torch
from torch import Tensor, nn

from testdg.core.weights import ema_update, frozen_copy
from testdg.methods import Adapter
from testdg.methods.parts.bottleneck import Bottleneck
from testdg.methods.parts.normalisation import (
    MixedBatchNorm,
    batch_norms,
    replace_batch_norms,
)
from testdg.methods.parts.warm_up import supervised, train_on_source
from testdg.methods.testdg.learning import domain_features, mlp
from testdg.methods.testdg.settings import TestDGSettings
from testdg.models import Output, VisionModel

SOURCE_WEIGHT = 1.5
"""Images that the source counts for, for each image of a batch and for two more, in the statistics of BatchNorm."""


class Networks(Adapter):
    """The networks of TestDG without its training.

    There are two paths through the student. The plain path, encoder and head, predicts. The domain path, encoder with
    amplifier and then the extractor, gives the domain embeddings.
    """

    settings: TestDGSettings
    embedding_width: ClassVar[int] = 16
    needs_features = True

    def build_networks(self) -> None:
        s = self.settings
        if self.batch_norm == "batch":
            replace_batch_norms(self.model, MixedBatchNorm, SOURCE_WEIGHT)
        self.amplifier = Bottleneck(self.model, s.rank, self.generator) if s.amplifier else None
        self.extractor, self.discriminator = self.domain_networks()
        self.teacher = frozen_copy(self.model)

    def domain_networks(self) -> tuple[nn.Sequential, nn.Sequential]:
        """Extractor and discriminator; the paper does not state their widths."""
        extractor = mlp([self.model.feature_size, 128, self.embedding_width], nn.ReLU, self.generator)
        return extractor, mlp([self.embedding_width, 16, 1], nn.GELU, self.generator)

    @property
    def batch_norm(self) -> str:
        """Whose statistics BatchNorm layers use; `source` for a model without such layers."""
        if not batch_norms(self.model):
            return "source"
        choice, default = self.settings.batch_norm, "batch" if self.model.task == "classification" else "source"
        return default if choice == "auto" else choice

    def remarks(self) -> list[str]:
        """The paper has no network with BatchNorm."""
        mixed = f"BatchNorm by the statistics of the batch, {SOURCE_WEIGHT} images of the source for each of its own"
        return [mixed] if self.batch_norm == "batch" else []

    @classmethod
    def exceptions(cls, model: VisionModel) -> Mapping[str, str]:
        if model.task == "classification" and batch_norms(model):
            return {"learning rate 0 is the source": "BatchNorm layers use the statistics of the batch"}
        return super().exceptions(model)

    def source_images(self) -> int:
        return 0 if self.amplifier is None else self.settings.source_images

    def learn_source(self, batches: Iterable[tuple[Tensor, Tensor]]) -> None:
        """Warm up the amplifier: cross-entropy on source images, with the model frozen."""
        amplifier, s = self.amplifier, self.settings
        if amplifier is None or not s.source_images:
            return super().learn_source(batches)
        optimizer = torch.optim.Adam(amplifier.parameters(), s.warm_up_learning_rate)
        loss = supervised(lambda images: amplifier.run(self.model, images).logits)
        with trained([amplifier], True):
            train_on_source(loss, optimizer, batches, s.source_images, clip=1.0)

    def infer(self, images: Tensor) -> Tensor:
        """Predict with the model whose predictions `step` returns."""
        model = self.model if self.settings.predict == "student" else self.teacher
        return model(images).logits  # type: ignore[no-any-return]

    @torch.no_grad()
    def embed(self, images: Tensor, model: VisionModel | None = None) -> Tensor:
        """Domain embeddings of images in [0, 1], (N, D): of the student, or with the encoder of another model."""
        images = self.model.prepare(self.checked(images))
        with self.autocast():
            return self._embed(self._domain_pass(images, model))

    def predicting_model(self) -> VisionModel:
        return frozen_copy(self.model if self.settings.predict == "student" else self.teacher)

    # Passes

    def _domain_pass(self, images: Tensor, model: VisionModel | None = None) -> Output:
        model = self.model if model is None else model
        return model(images) if self.amplifier is None else self.amplifier.run(model, images)

    def _teach(self, images: Tensor) -> Tensor:
        with torch.no_grad():
            return self.teacher(images).logits  # type: ignore[no-any-return]

    def _embed(self, output: Output) -> Tensor:
        return self._extract(output.features)

    def _extract(self, features: Tensor) -> Tensor:
        with torch.autocast(features.device.type, enabled=False):
            return self.extractor(domain_features(features, self.settings.grid))  # type: ignore[no-any-return]

    def _discriminate(self, embeddings: Tensor) -> Tensor:
        with torch.autocast(embeddings.device.type, enabled=False):
            return self.discriminator(embeddings)  # type: ignore[no-any-return]

    def _move_teacher(self) -> None:
        ema_update(self.teacher, self.model, self.settings.momentum)


@contextmanager
def trained(modules: list[nn.Module], active: bool) -> Iterator[None]:
    """Context in which gradients reach only these modules, or none."""
    for module in modules:
        module.requires_grad_(active)
    try:
        with torch.set_grad_enabled(active):
            yield
    finally:
        for module in modules:
            module.requires_grad_(False)
