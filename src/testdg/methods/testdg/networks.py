"""The networks of TestDG: student, amplifier, extractor, discriminator and teacher, and the passes through them."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from testdg.methods import Adapter
from testdg.methods.parts.bottleneck import Bottleneck
from testdg.methods.parts.normalisation import (
    MixedBatchNorm,
    RunningBatchNorm,
    batch_norms,
    follow_statistics,
    replace_batch_norms,
)
from testdg.methods.parts.warm_up import supervised, train_on_source
from testdg.methods.parts.weights import Anchor, ema_update, frozen_copy, restore
from testdg.methods.testdg.learning import domain_features, mlp
from testdg.methods.testdg.rules import RELEASED, TEXT
from testdg.methods.testdg.settings import TestDGSettings
from testdg.models import Output, VisionModel

STREAM_MEMORY = 128
"""Images that the statistics of BatchNorm layers are remembered from, where they follow the stream."""
SOURCE_WEIGHT = 4
"""Images that the source counts for in the statistics of a batch."""


class Networks(Adapter):
    """What TestDG is made of, without what it does with a batch."""

    settings: TestDGSettings

    def build_networks(self) -> None:
        """Make the networks of the paper's text, or of the released code."""
        self.rules = RELEASED if self.settings.as_released else TEXT
        s, rules, classes = self.settings, self.rules, self.model.classes
        if self.batch_norm == "stream":
            replace_batch_norms(self.model, RunningBatchNorm, STREAM_MEMORY)
        elif self.batch_norm == "batch":
            replace_batch_norms(self.model, MixedBatchNorm, SOURCE_WEIGHT)
        self.amplifier = Bottleneck(self.model, s.rank, self.generator) if s.amplifier else None
        inputs = classes if rules.embed_from == "logits" else self.model.feature_size
        widths = [inputs, rules.extractor_hidden or 2 * classes, rules.embedding_width]
        self.extractor = mlp(widths, rules.extractor_activation, self.generator)
        widths = [rules.embedding_width, *rules.discriminator_hidden, 1]
        self.discriminator = mlp(widths, rules.discriminator_activation, self.generator)
        self.teacher = frozen_copy(self.model)
        self.teacher_amplifier = None if self.amplifier is None else frozen_copy(self.amplifier)
        self.source = Anchor(list(self.model.parameters())) if rules.restore else None
        self.source_amplifier = None
        if rules.restore and self.amplifier is not None:
            self.source_amplifier = frozen_copy(self.amplifier)  # a warm-up moves it, so it is state

    @property
    def batch_norm(self) -> str:
        """Whose statistics BatchNorm layers use; a model without them has the source's alone."""
        if not batch_norms(self.model):
            return "source"
        wanted, own = self.settings.batch_norm, "batch" if self.model.task == "classification" else "source"
        return own if wanted == "auto" else wanted

    def remarks(self) -> list[str]:
        """The paper has no network with BatchNorm."""
        batch = f"of the batch, the source counting as {SOURCE_WEIGHT} images"
        whose = {"stream": f"of the last {STREAM_MEMORY} images of the stream", "batch": batch}
        return [f"BatchNorm by the statistics {whose[self.batch_norm]}"] if self.batch_norm in whose else []

    @classmethod
    def exceptions(cls, model: VisionModel) -> Mapping[str, str]:
        """Batch statistics change the prediction even without learning."""
        if model.task == "classification" and batch_norms(model):
            return {"learning rate 0 is the source": "BatchNorm layers use the statistics of the batch"}
        return super().exceptions(model)

    @property
    def needs_features(self) -> bool:
        """The text embeds features, the released code logits."""
        return not self.settings.as_released

    def source_images(self) -> int:
        """How many source images the amplifier warms up on."""
        return 0 if self.amplifier is None else self.settings.source_images

    def learn_source(self, batches: Iterable[tuple[Tensor, Tensor]]) -> None:
        """Warm the amplifier up: cross-entropy on source images, the model itself frozen."""
        amplifier, s = self.amplifier, self.settings
        if amplifier is None or not s.source_images:
            return super().learn_source(batches)
        optimizer = torch.optim.Adam(amplifier.parameters(), s.warm_up_learning_rate)
        loss = supervised(lambda images: amplifier.run(self.model, images).logits)
        with trained([amplifier], True):
            train_on_source(loss, optimizer, batches, s.source_images, clip=1.0)
        for follower in (self.teacher_amplifier, self.source_amplifier):
            if follower is not None:
                ema_update(follower, amplifier, 0.0)

    def infer(self, images: Tensor) -> Tensor:
        """Predict with the model whose predictions `step` returns."""
        return (self._run(images) if self.rules.predict == "student" else self._teach(images)).logits

    @torch.no_grad()
    def embed(self, images: Tensor, model: VisionModel | None = None) -> Tensor:
        """Domain embeddings of images in [0, 1]: of the student, or of another model's features; nothing changes."""
        images = self.model.prepare(self.checked(images))
        with self.autocast():
            return self._embed(self._run(images) if model is None else model(images))

    def predicting_model(self) -> VisionModel:
        """The predicting model with its amplifier merged into the weights."""
        student = self.rules.predict == "student"
        model = frozen_copy(self.model if student else self.teacher)
        amplifier = self.amplifier if student else self.teacher_amplifier
        if amplifier is not None:
            model.load_state_dict(amplifier.merged(model), strict=False)
        if self.batch_norm == "stream":
            replace_batch_norms(model, nn.BatchNorm2d)
        return model

    # Passes and averages

    def _run(self, images: Tensor) -> Output:
        return self.model(images) if self.amplifier is None else self.amplifier.run(self.model, images)

    def _run_first(self, images: Tensor) -> Output:
        """The pass of a batch in which the student's BatchNorm statistics follow the stream."""
        with follow_statistics(self.model):
            return self._run(images)

    def _teach(self, images: Tensor) -> Output:
        if self.teacher_amplifier is None:
            return self.teacher(images)  # type: ignore[no-any-return]
        return self.teacher_amplifier.run(self.teacher, images)

    def _embed(self, output: Output) -> Tensor:
        read = output.features if self.rules.embed_from == "features" else output.logits
        with torch.autocast(read.device.type, enabled=False):
            return self.extractor(domain_features(read, self.settings.grid))  # type: ignore[no-any-return]

    def _discriminate(self, embeddings: Tensor) -> Tensor:
        with torch.autocast(embeddings.device.type, enabled=False):
            return self.discriminator(embeddings)  # type: ignore[no-any-return]

    @torch.no_grad()
    def _move_teacher(self) -> None:
        """The moving average; then, in the student alone, some weights go back to the source."""
        s, share = self.settings, self.rules.restore
        ema_update(self.teacher, self.model, s.momentum, buffers=self.batch_norm != "stream")
        if self.amplifier is not None and self.teacher_amplifier is not None:
            own = s.momentum if s.amplifier_momentum is None else s.amplifier_momentum
            ema_update(self.teacher_amplifier, self.amplifier, own)
        if self.source is not None:
            restore(self.model.parameters(), self.source.values(), share, self.generator)
        if self.amplifier is not None and self.source_amplifier is not None:
            restore(self.amplifier.parameters(), self.source_amplifier.parameters(), share, self.generator)


@contextmanager
def trained(modules: list[nn.Module], active: bool) -> Iterator[None]:
    """Let gradients reach some modules alone, and none at all where there is nothing to learn."""
    for module in modules:
        module.requires_grad_(active)
    try:
        with torch.set_grad_enabled(active):
            yield
    finally:
        for module in modules:
            module.requires_grad_(False)
