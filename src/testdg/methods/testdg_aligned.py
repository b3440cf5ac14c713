"""TestDG aligned: self-training and domain-invariant learning on features that are aligned to the source."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from testdg.core.weights import Anchor, ema_update, frozen_copy
from testdg.data.augmentation import Augmentation
from testdg.methods import Learner, Presets, Search, option, register
from testdg.methods.align import PRESETS as ALIGN_PRESETS
from testdg.methods.align import Align, AlignSettings, first_images
from testdg.methods.parts.blocks import transformer_blocks
from testdg.methods.parts.entropy import effective_classes, symmetric_cross_entropy
from testdg.methods.parts.normalisation import batch_norms
from testdg.methods.parts.waiting import Waiting
from testdg.methods.testdg.learning import domain_features
from testdg.models import Output, VisionModel
from testdg.models.alignment import class_shares

DRIFT_MEMORY = 400.0
"""Images in the mean of the features for L_inv."""
LEAST_CLASSES = 0.5
"""Least share of the usual number of classes (or of images, if these are fewer) in a batch that is learnt from."""
SHRINKAGE = 2.0
"""Images of a class at which its prototype has half of its weight."""


BATCH_NORM: Mapping[str, object] = {"learning_rate": 1e-3, "momentum": 0.98, "augmentation": 1.5}
"""Classifiers with BatchNorm: chosen for ResNet-20 on the extra corruptions."""


@dataclass(frozen=True, kw_only=True)
class TestDGAlignedSettings(AlignSettings):
    """Settings of TestDG aligned, in addition to those of the alignment."""

    __test__ = False  # not a test class, although its name begins with Test

    learning_rate: float = option(2e-5, "learning rate of encoder and head", low=0)
    momentum: float = option(0.99, "momentum of the teacher's moving average", low=0, high=1)
    source_share: float = option(0.3, "share of the source in the teacher's average", low=0, high=1)
    diversity_weight: float = option(3.0, "weight of a term that keeps the long-term mix of classes balanced", low=0)
    invariance_weight: float = option(1.0, "weight of L_inv, to the class prototypes of the source", low=0)
    mirror: bool = option(False, "the teacher also sees the mirrored images: one more pass; not for digits or text")
    augmentation: float = option(
        0.0, "strength of the augmentation (colour, blur, noise) of the student's images; 0 for none", low=0
    )
    gather: int = option(40, "images of a learning step: smaller batches are predicted at once, and collected", low=1)
    cuda_graphs: bool = option(False, "record the step as CUDA graphs: much faster for small models on a GPU")


PICTURES: Mapping[str, object] = {
    "learning_rate": 2e-4,
    "momentum": 0.995,
    "diversity_weight": 0.0,
    "invariance_weight": 0.0,
    "augmentation": 1.0,
    "gather": 1,
}
"""Single street scenes: classes have very different numbers of pixels, and features depend on the content."""


@register
class TestDGAligned(Align):
    """A student learns from a teacher, both aligned to the source; a loss keeps its features near the prototypes."""

    __test__ = False

    name = "testdg_aligned"
    title = "TestDG aligned"
    citation = (
        "this library, on the ground of Lee et al., TestDG: Test-time Domain Generalization for Continual Test-time "
        "Adaptation, TMLR 2026"
    )
    example_error = 9.5
    source_data = "measuring what its statistics and features should be"
    Settings = TestDGAlignedSettings
    settings: TestDGAlignedSettings
    search = Search(
        rates=(0.1, 0.3, 1, 3), values={"source_share": (0.1, 0.3, 0.5)}, variants={"mirrored": {"mirror": True}}
    )
    presets: ClassVar[Presets] = {
        "digits-c": {**ALIGN_PRESETS["digits-c"], "learning_rate": 5e-4, "momentum": 0.99, "gather": 20},
        "streets": {**ALIGN_PRESETS["streets"], **PICTURES},
        "folder-weather": {**ALIGN_PRESETS["folder-weather"], **PICTURES, "learning_rate": 4e-4, "source_share": 0.5},
    }

    @classmethod
    def defaults_for(cls, model: VisionModel) -> Mapping[str, Any]:
        """Classifiers with BatchNorm learn with a higher learning rate, and from augmented images."""
        return BATCH_NORM if model.task == "classification" and batch_norms(model) else {}

    def build(self) -> None:
        super().build()
        s, device = self.settings, self.model.device
        self.again: tuple[nn.Module, ...] = ()  # checkpointed blocks: the backward pass runs them again
        if s.precision == "bf16":
            lean_norms(self.model)
            self.again = () if batch_norms(self.model) else tuple(transformer_blocks(self.model)[:1])
        self.teacher = frozen_copy(self.model)
        self.source = Anchor(list(self.model.parameters()))
        width, classes = self.model.feature_size, self.model.classes
        self.source_mean: Tensor = nn.Buffer(torch.zeros(width, device=device))
        self.source_std: Tensor = nn.Buffer(torch.ones(width, device=device))
        self.class_prototypes: Tensor = nn.Buffer(torch.zeros(classes, width, device=device))
        self.drift: Tensor = nn.Buffer(torch.zeros(width, device=device))
        self.spread: Tensor = nn.Buffer(torch.full((), LEAST_CLASSES, device=device))
        self.mix: Tensor = nn.Buffer(torch.full((classes,), 1 / classes, device=device))
        self.waiting = Waiting(s.gather)
        self.augment = Augmentation(s.augmentation, move=False)
        self.learner = Learner([{"params": self.model.parameters(), "lr": s.learning_rate}])

    @property
    def needs_features(self) -> bool:
        return self.settings.invariance_weight > 0

    @property
    def measures(self) -> bool:
        return True

    @torch.no_grad()
    def learn_source(self, batches: Iterable[tuple[Tensor, Tensor]]) -> None:
        """Measure the source: statistics of the tokens, scale of the features, a prototype of each class."""
        images = first_images((batch for batch, _ in batches), self.settings.source_images)
        self.measure(images)
        if self.model.head is not None:
            outputs = [self.model.run(batch) for batch in images]
            features = torch.cat([domain_features(output.features) for output in outputs])
            shares = torch.cat([class_shares(output.logits) for output in outputs])
            self.source_mean.copy_(features.mean(0))
            self.source_std.copy_(features.std(0).clamp(min=1e-6))
            sums = torch.einsum("nc,nd->cd", shares, self._standardised(features))
            self.class_prototypes.copy_(sums / (shares.sum(0) + SHRINKAGE)[:, None])
        self.teacher.load_state_dict(self.model.state_dict())

    def infer(self, images: Tensor) -> Tensor:
        with self.reading(self.teacher):
            return self.teacher(images).logits  # type: ignore[no-any-return]

    def step(self, images: Tensor) -> Tensor:
        """Predict with the teacher and learn from it: 4 forward-equivalents, 5 with `mirror`, 2 more at a large gap.

        `_observe`, `_mirror` and `_learn` change tensors in place and never wait for the host, so that each can be
        recorded as a CUDA graph. Decisions that need the host are made between them: whether a new domain has begun,
        and whether enough images have been collected for a learning step.
        """
        if (early := self.begin(images)) is not None:
            return early
        if batch_norms(self.model):  # the pass itself changes their memory: refuse a bad batch before it
            self.to_host()
        seen = self.record("observe", self._observe, images)
        (gap,) = self.to_host(seen["gap"])
        taught, changed = self._remember(images, seen, gap)
        self.diagnostics.update(change=changed, gap=gap)
        if (gathered := self.waiting.gather(images, taught)) is not None:
            self.diagnostics.update(self.record("learn", self._learn, *gathered))
        return taught

    @torch.no_grad()
    def _observe(self, images: Tensor) -> dict[str, Tensor]:
        """Run the teacher, and compute what the pass would add to its memory."""
        alignment = self.alignment_of(self.teacher)
        with alignment.follow():
            logits = self.teacher.run(images).logits
        return {"logits": logits, "gap": alignment.propose(logits), **alignment.proposal()}

    @torch.no_grad()
    def _mirror(self, images: Tensor) -> dict[str, Tensor]:
        return {"logits": self.teacher.run(images.flip(-1)).logits}

    @torch.no_grad()
    def _remember(self, images: Tensor, seen: Mapping[str, Tensor], gap: float) -> tuple[Tensor, bool]:
        """Add a batch to the teacher's memory; in a new domain, the student's memory follows.

        Returns the teacher's prediction, and whether a new domain has begun.
        """
        alignment = self.alignment_of(self.teacher)
        alignment.take_proposal(seen)
        before = alignment.stream()
        output = Output(seen["logits"], seen["logits"])
        output, changed = alignment.settle(lambda: self.teacher.run(images), output, gap)
        logits = output.logits
        if changed:
            self.alignment_of(self.model).move(before, alignment.stream())
        if self.settings.mirror:
            other = self.record("mirror", self._mirror, images)["logits"]
            logits = torch.stack([logits.float().log_softmax(1), other.float().log_softmax(1)]).logsumexp(0)
        return logits, changed

    def _learn(self, images: Tensor, taught: Tensor) -> dict[str, Tensor]:
        """Update the student by its losses, and the teacher by the student. Weights are written after the last pass."""
        s = self.settings
        self.model.requires_grad_(True)
        view = self.augment(images, self.generator)
        alignment = self.alignment_of(self.model)
        with torch.enable_grad(), alignment.follow(), passed_again(self.again):
            output = self.model.run(view)
        alignment.propose(taught)
        alignment.remember(changed=False)
        losses = {"self_training_loss": symmetric_cross_entropy(output.logits, taught).mean()}
        if s.diversity_weight:
            losses["diversity_loss"] = s.diversity_weight * self._diversity(output.logits)
        if s.invariance_weight:
            losses["invariance_loss"] = s.invariance_weight * self._invariance(output.features, taught)
        balanced = self._balanced(taught)
        self.learner.step(torch.stack(list(losses.values())).sum(), when=balanced)
        self.model.requires_grad_(False)
        ema_update(self.teacher, self.model, s.momentum, buffers=False)
        pull = (1 - s.momentum) * s.source_share
        torch._foreach_lerp_(list(self.teacher.parameters()), self.source.values(), pull)
        return {"learnt": balanced, **{name: loss.detach() for name, loss in losses.items()}}

    def _balanced(self, taught: Tensor) -> Tensor:
        """Whether a batch shows enough classes to learn from; a batch of one class would teach that class alone.

        The batches before it must show enough, too: in a hard domain, the predictions of a single class are of many.
        """
        mix, images = class_shares(taught).mean(0).detach(), len(taught)
        shown, usual = effective_classes(mix), effective_classes(self.mix)
        share = shown / usual.clamp(max=images)
        self.spread.lerp_(share, images / (self.settings.memory + images))
        return torch.minimum(share, self.spread) >= LEAST_CLASSES

    def _diversity(self, logits: Tensor) -> Tensor:
        """Negative entropy of the long-term mix of classes; its gradient is that of this batch's own mix."""
        mix = class_shares(logits).mean(0)
        images = len(logits)
        self.mix.copy_(self.mix.lerp(mix.detach(), images / (self.settings.memory + images)))
        return (mix * self.mix.clamp(min=1e-8).log()).sum()

    def _invariance(self, features: Tensor, taught: Tensor) -> Tensor:
        """L_inv: mean distance of the stream's features from the prototypes of their classes, in the source's scale.

        The mean over the last images decides the sign for each feature; the gradient is that of this batch.
        """
        with torch.autocast(features.device.type, enabled=False):
            rest = (self._standardised(features) - class_shares(taught) @ self.class_prototypes).mean(0)
            images = len(features)
            self.drift.copy_(self.drift.lerp(rest.detach(), images / (DRIFT_MEMORY + images)))
            return (self.drift.sign() * rest).mean()

    def _standardised(self, features: Tensor) -> Tensor:
        return (domain_features(features) - self.source_mean) / self.source_std

    def predicting_model(self) -> VisionModel:
        return self.as_predicts(self.teacher)


# Less memory for a backward pass under autocast, at the precision that its layers compute in anyway


class LeanLayerNorm(nn.LayerNorm):
    """A LayerNorm that computes in full precision, but stores and returns tokens in the precision of autocast.

    The linear layers after it would each make their own copy in that precision; now they share one.
    """

    def forward(self, tokens: Tensor) -> Tensor:
        """(..., D) to the same."""
        device = tokens.device.type
        if not torch.is_autocast_enabled(device):
            return super().forward(tokens)
        low = torch.get_autocast_dtype(device)
        inputs = tokens, self.weight, self.bias, self.normalized_shape, self.eps, low
        return _LeanNorm.apply(*inputs)  # type: ignore[no-any-return, no-untyped-call]


class _LeanNorm(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, tokens: Tensor, weight: Tensor, bias: Tensor, shape: Any, eps: float, low: torch.dtype
    ) -> Tensor:
        output, mean, scale = torch.native_layer_norm(tokens.float(), shape, weight, bias, eps)
        ctx.save_for_backward(tokens.to(low), mean, scale, weight, bias)
        ctx.shape, ctx.dtype = shape, tokens.dtype
        return output.to(low)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        tokens, mean, scale, weight, bias = ctx.saved_tensors
        needed = ctx.needs_input_grad[:3]
        by_tokens, by_weight, by_bias = torch.ops.aten.native_layer_norm_backward(
            gradients[0].float(), tokens.float(), ctx.shape, mean, scale, weight, bias, needed
        )
        by_tokens = by_tokens.to(ctx.dtype) if needed[0] else None
        return by_tokens, by_weight, by_bias, None, None, None


def lean_norms(model: VisionModel) -> None:
    """Turn the LayerNorms of a model into `LeanLayerNorm`."""
    for _, layer in model.norm_layers():
        if type(layer) is nn.LayerNorm and layer.elementwise_affine and layer.bias is not None:
            layer.__class__ = LeanLayerNorm


@contextmanager
def passed_again(blocks: Iterable[nn.Module]) -> Iterator[None]:
    """Context in which only the inputs of these blocks are stored; the backward pass runs the blocks again.

    The first block of a network saves the most: when it runs again, the activations of all others are already freed.
    """
    blocks = list(blocks)
    for block in blocks:
        block.forward = partial(checkpoint, block.forward, use_reentrant=False, preserve_rng_state=False)
    try:
        yield
    finally:
        for block in blocks:
            del block.forward
