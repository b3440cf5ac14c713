"""TestDG aligned: self-training and domain-invariant learning on features that are aligned to the source."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits as bce

from testdg.methods.align import Align, AlignSettings
from testdg.methods.parts.bottleneck import Bottleneck
from testdg.methods.parts.entropy import symmetric_cross_entropy
from testdg.methods.parts.graphs import Function, Recorded
from testdg.methods.parts.lean import lean_graph, lean_norms
from testdg.methods.parts.learner import Learner
from testdg.methods.parts.matching import sorted_distance
from testdg.methods.parts.normalisation import batch_norms, follow_statistics
from testdg.methods.parts.restore import Anchor, restore
from testdg.methods.parts.teacher import ema_update, frozen_copy
from testdg.methods.parts.waiting import Waiting
from testdg.methods.registry import register
from testdg.methods.settings import option
from testdg.methods.testdg.learning import domain_features, mlp
from testdg.methods.testdg.memory import Prototypes, Queue
from testdg.methods.testdg.selection import select_mmd
from testdg.methods.testdg.update import chamfer, update_prototypes
from testdg.models import Output, VisionModel
from testdg.models.alignment import class_shares

FIRST = 50
"""Batches in which the teacher follows faster: the source is far from what it is about to learn."""
FIRST_MOMENTUM = 0.99


@dataclass(frozen=True, kw_only=True)
class TestDGAlignedSettings(AlignSettings):
    """Settings of TestDG aligned."""

    __test__ = False

    learning_rate: float = option(2e-5, "of encoder and head", low=0)
    momentum: float = option(0.997, "of the teacher's moving average", low=0, high=1)
    restore: float = option(0.0, "share of weights put back to the source after a batch", low=0, high=1)
    source_share: float = option(0.3, "of the source in what the teacher averages", low=0, high=1)
    diversity_weight: float = option(3.0, "weight of a term that keeps the mean prediction spread out", low=0)
    invariance_weight: float = option(1.0, "weight of L_inv", low=0)
    prototypes: int = option(40, "prototypes of the source, and of each previous domain", low=1)
    previous_domains: int = option(0, "previous domains whose prototypes are kept beside the source's", low=0)
    mirror: Literal["none", "teacher"] = option("none", "mirrored view")
    gather: int = option(40, "images that one step needs: smaller batches are predicted at once and gathered", low=1)
    cuda_graphs: bool = option(False, "record the step as CUDA graphs: much faster for small models on a GPU")
    mix_memory: float = option(800.0, "images", low=0)
    invariance: Literal["sorted", "mean", "random", "class"] = option("class", "x")
    inv_memory: float = option(400.0, "x")
    discrimination: bool = option(False, "L_dis")
    prototype_update: bool = option(False, "L_update")
    amplifier: bool = option(False, "amplifier")
    optimizer: Literal["adam", "sgd"] = option("adam", "o")


@register
class TestDGAligned(Align):
    """A teacher and a student that align to the source; the student follows the teacher, and source prototypes."""

    __test__ = False

    name = "testdg_aligned"
    title = "TestDG aligned"
    citation = "this library, after Lee et al., TestDG, TMLR 2026"
    needs = "a transformer, or BatchNorm"
    Settings = TestDGAlignedSettings
    settings: TestDGAlignedSettings
    source_mean: Tensor
    source_std: Tensor
    source_prototypes: Tensor
    mix: Tensor
    drift: Tensor

    def build(self) -> None:
        super().build()
        if self.settings.precision == "bf16":
            lean_norms(self.model)
        s, device, width = self.settings, self.model.device, self.model.feature_size
        self.teacher = frozen_copy(self.model)
        self.amplifier = Bottleneck(self.model, 128, self.generator) if s.amplifier else None
        self.teacher_amplifier = None if self.amplifier is None else frozen_copy(self.amplifier)
        self.anchor = Anchor(list(self.model.parameters()))
        self.register_buffer("source_mean", torch.zeros(width, device=device))
        self.register_buffer("source_std", torch.ones(width, device=device))
        self.register_buffer("source_prototypes", torch.zeros(s.prototypes, width, device=device))
        self.register_buffer("mix", torch.full((self.model.classes,), 1 / self.model.classes, device=device))
        self.register_buffer("drift", torch.zeros(width, device=device))
        self.register_buffer("offsets", torch.zeros(self.model.classes, width, device=device))
        self.waiting = Waiting(s.gather, ("images", "logits"))
        self.queue = Queue(256, width, device)
        self.previous = Prototypes(width, s.prototypes, max(1, s.previous_domains), device)
        if s.discrimination:
            self.extractor = mlp([width, 128, 16], torch.nn.ReLU, self.generator)
            self.discriminator = mlp([16, 16, 1], torch.nn.GELU, self.generator)
            groups = [{"params": [*self.extractor.parameters(), *self.discriminator.parameters()], "lr": 1e-4}]
            if self.amplifier is not None:
                groups.append({"params": [*self.amplifier.parameters()], "lr": s.learning_rate / 10})
            self.domain_learner = Learner(groups)
        self.learner = Learner([{"params": self.model.parameters(), "lr": s.learning_rate}], s.optimizer)
        self.recorded: dict[str, Recorded] = {}
        self.requires_grad_(False)

    def source_images(self) -> int:
        return self.settings.source_images

    @torch.no_grad()
    def learn_source(self, batches: Iterable[tuple[Tensor, Tensor]]) -> None:
        images = []
        features = []
        count = 0
        for batch, _ in batches:
            images.append(batch)
            count += len(batch)
            if count >= self.settings.source_images:
                break
        super().learn_source((batch, batch.new_empty(0)) for batch in images)
        features = torch.cat([domain_features(self.model.run(batch).features) for batch in images])
        self.source_mean.copy_(features.mean(0))
        self.source_std.copy_(features.std(0).clamp(min=1e-6))
        z = self._standardise(features)
        with self._autocast():
            p = torch.cat([class_shares(self.model.run(batch).logits) for batch in images])
        self.offsets.copy_((p.T @ z) / (p.sum(0) + 2)[:, None])
        chosen = z[select_mmd(z, self.settings.prototypes)]
        self.source_prototypes[: len(chosen)] = chosen
        self.teacher.load_state_dict(self.model.state_dict())

    def _standardise(self, features: Tensor) -> Tensor:
        return (domain_features(features) - self.source_mean) / self.source_std

    def infer(self, images: Tensor) -> Tensor:
        with self.looking(self.teacher):
            return self._teach(images).logits

    def step(self, images: Tensor) -> Tensor:
        s = self.settings
        if batch_norms(self.model):
            self.to_host()
        seen = self._call("observe", images)
        taught = seen["logits"]
        (gap,) = self.to_host(seen["gap"])
        alignment = self.teacher.alignment
        changed = False
        if alignment is not None:
            before = alignment.stream()
            alignment.take_proposal(seen)
            alignment.changed = False
            if gap > alignment.threshold:
                taught = alignment.again(lambda: self._teach(images), Output(taught, taught), gap).logits
            changed = alignment.changed
            alignment.remember(changed)
            if changed and self.model.alignment is not None:
                self.model.alignment.move(before, alignment.stream())
        if s.mirror == "teacher":
            with torch.no_grad():
                other = self._call("mirrored", images)["logits"]
            taught = torch.stack([taught.float().log_softmax(1), other.float().log_softmax(1)]).logsumexp(0)
        if s.previous_domains and changed and len(self.queue):
            z, positions = self.queue.content()
            chosen = select_mmd(z, s.prototypes)
            self.previous.add(z[chosen], positions[chosen])
            self.queue.clear()
        self.diagnostics.update(change=changed, gap=gap)
        gathered = self.waiting.gather(images, taught)
        if gathered is None:
            return taught
        key = (self.batches < FIRST, len(self.previous))
        learnt = self._call("learn", *gathered, key=key)
        if s.previous_domains:
            self.queue.count(len(gathered[0]))
        self.diagnostics.update(learnt)
        return taught

    def _call(self, name: str, *inputs: Tensor, key: Hashable = None) -> dict[str, Tensor]:
        parts: dict[str, Function] = {"observe": self._observe, "learn": self._learn, "mirrored": self._mirrored}
        if not self.settings.cuda_graphs or inputs[0].device.type != "cuda":
            return parts[name](*inputs)
        recorded = self.recorded.setdefault(name, Recorded(parts[name], self.generator))
        return recorded(key, *inputs)

    def _teach(self, images: Tensor) -> Output:
        return self.teacher(images) if self.teacher_amplifier is None else self.teacher_amplifier.run(self.teacher, images)

    def _run(self, images: Tensor) -> Output:
        return self.model.run(images) if self.amplifier is None else self.amplifier.run(self.model, images)

    @torch.no_grad()
    def _observe(self, images: Tensor) -> dict[str, Tensor]:
        with follow_statistics(self.teacher):
            logits = self._teach(images).logits
        alignment = self.teacher.alignment
        if alignment is None:
            return {"logits": logits, "gap": logits.new_zeros(())}
        return {"logits": logits, "gap": alignment.propose(logits), **alignment.proposal()}

    @torch.no_grad()
    def _mirrored(self, images: Tensor) -> dict[str, Tensor]:
        return {"logits": self._teach(images.flip(-1)).logits}

    def _learn(self, images: Tensor, taught: Tensor) -> dict[str, Tensor]:
        s = self.settings
        found: dict[str, Tensor] = {}
        view = images
        reference = torch.cat([self.source_prototypes, self.previous.current.clone()])
        if s.discrimination:
            amp = [self.amplifier] if self.amplifier is not None else []
            for m in (*amp, self.extractor, self.discriminator):
                m.requires_grad_(True)
            with torch.enable_grad() if amp else torch.no_grad():
                out = self._run(view)
            z = self._standardise(out.features)
            with torch.enable_grad(), torch.autocast(z.device.type, enabled=False):
                a, b = self.discriminator(self.extractor(z)), self.discriminator(self.extractor(reference))
                loss = 0.5 * (bce(a, torch.ones_like(a)) + bce(b, torch.zeros_like(b)))
            self.domain_learner.step(loss)
            found["dis"] = loss.detach()
            for m in (*amp, self.extractor, self.discriminator):
                m.requires_grad_(False)
        self.model.requires_grad_(True)
        with torch.enable_grad():
            with follow_statistics(self.model), lean_graph(images.device.type):
                output = self._run(view)
            if self.model.alignment is not None:
                self.model.alignment.propose(taught)
                self.model.alignment.remember()
            losses = symmetric_cross_entropy(output.logits, taught).mean()
            found["self"] = losses.detach()
            if s.diversity_weight:
                losses = losses + s.diversity_weight * self._diversity(output.logits)
            z = self._standardise(output.features)
            if s.invariance_weight:
                inv = self._invariance(z, reference, taught)
                found["inv"] = inv.detach()
                losses = losses + s.invariance_weight * inv
            self.learner.step(losses)
        self.model.requires_grad_(False)
        z = z.detach()
        if s.prototype_update and len(self.previous):
            with torch.no_grad():
                after = self._standardise(self._run(view).features)
            self.previous.move(update_prototypes(chamfer, z, after, self.previous.current.clone(), 0.01, 1))
            z = after
        if s.previous_domains:
            self.queue.push(z, len(z), self.generator)
        if s.restore:
            restore(self.model.parameters(), self.anchor.values(), s.restore, self.generator)
        momentum = FIRST_MOMENTUM if self.batches < FIRST else s.momentum
        ema_update(self.teacher, self.model, momentum, buffers=False)
        if s.source_share:
            torch._foreach_lerp_(list(self.teacher.parameters()), self.anchor.values(), (1 - momentum) * s.source_share)
        if self.amplifier is not None:
            ema_update(self.teacher_amplifier, self.amplifier, momentum)
        return found

    def _invariance(self, z: Tensor, reference: Tensor, taught: Tensor) -> Tensor:
        kind = self.settings.invariance
        if self.settings.discrimination:
            with torch.autocast(z.device.type, enabled=False):
                z, reference = self.extractor(z), self.extractor(reference)
        if kind == "class":
            with torch.autocast(z.device.type, enabled=False):
                rest = (z - class_shares(taught) @ self.offsets).mean(0)
                share = len(z) / (self.settings.inv_memory + len(z))
                mean = self.drift.lerp(rest.detach(), share)
                self.drift.copy_(mean)
                return (mean.sign() * rest).mean()
        if kind == "sorted":
            return sorted_distance(z, reference)
        if kind == "random":
            order = torch.rand(len(reference), generator=self.generator, device=z.device).argsort()
            return (z - reference[order[torch.arange(len(z), device=z.device) % len(reference)]]).abs().mean()
        mean = 0.9 * self.drift + 0.1 * z.mean(0)
        self.drift.copy_(mean.detach())
        return 10 * (mean - reference.mean(0)).abs().mean()

    def _diversity(self, logits: Tensor) -> Tensor:
        p = logits.float().softmax(1).movedim(1, -1).flatten(0, -2).mean(0)
        share = len(logits) / (self.settings.mix_memory + len(logits))
        mix = self.mix.lerp(p.detach(), share)
        self.mix.copy_(mix)
        return (p * mix.clamp(min=1e-8).log()).sum()

    def load_state(self, tensors: Mapping[str, Tensor], values: Mapping[str, Any]) -> None:
        super().load_state(tensors, values)
        self.recorded = {}

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> TestDGAligned:
        super()._apply(fn, recurse)
        self.recorded = {}
        return self

    def adapted_model(self) -> VisionModel:
        model = self.as_predicts(self.teacher)
        if self.teacher_amplifier is not None:
            model.load_state_dict(self.teacher_amplifier.merged(model), strict=False)
        return model
