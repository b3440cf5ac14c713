"""TestDG: one batch, from the detection of a new domain to the update of the prototypes."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from testdg.data.augmentation import Augmentation
from testdg.methods.adapter import Adapter
from testdg.methods.parts.bottleneck import Bottleneck
from testdg.methods.parts.entropy import diversity_loss
from testdg.methods.parts.graphs import Function, Recorded
from testdg.methods.parts.learner import Learner
from testdg.methods.parts.normalisation import use_batch_statistics
from testdg.methods.parts.restore import Anchor, restore
from testdg.methods.parts.teacher import ema_update, frozen_copy
from testdg.methods.parts.waiting import Waiting
from testdg.methods.registry import register
from testdg.methods.testdg.detection import ChangeDetector, appearance
from testdg.methods.testdg.learning import (
    bounded_sum,
    discrimination_loss,
    discriminator,
    domain_accuracy,
    domain_features,
    extractor,
    invariance_loss,
    self_training_loss,
)
from testdg.methods.testdg.memory import Prototypes, Queue
from testdg.methods.testdg.selection import select, selection_mmd2
from testdg.methods.testdg.settings import PRESETS, TestDGSettings
from testdg.methods.testdg.update import DISTANCES, chamfer, update_prototypes
from testdg.models import Output, VisionModel


@register
class TestDG(Adapter):
    """Learn features that are invariant to the current and the previous domain, on the fly.

    Step 1 trains amplifier, extractor and discriminator to tell the current domain from prototypes of the previous
    one; step 2 trains encoder and head to follow the teacher and to make the two domains alike.
    """

    __test__ = False  # not a test class, whatever its name begins with

    name = "testdg"
    title = "TestDG"
    citation = "Lee et al., TestDG: Test-time Domain Generalization for Continual Test-time Adaptation, TMLR 2026"
    tasks = ("classification", "segmentation")
    needs = "for the amplifier, attention or convolutions"
    Settings = TestDGSettings
    settings: TestDGSettings
    presets = PRESETS
    checks_input_late = True

    def build(self) -> None:
        """Make amplifier, extractor, discriminator, teacher, memory and the two optimisers."""
        s, device, generator = self.settings, self.model.device, self.generator
        if s.batch_statistics:
            use_batch_statistics(self.model)
        self.amplifier = Bottleneck(self.model, s.rank, generator) if s.amplifier else None
        inputs = self.model.feature_size if s.embed_from == "features" else self.model.classes
        self.extractor = extractor(inputs, s.extractor_width, s.embedding_width, generator)
        self.discriminator = discriminator(s.embedding_width, s.discriminator_width, generator)
        self.teacher = frozen_copy(self.model)
        self.teacher_amplifier = None if self.amplifier is None else frozen_copy(self.amplifier)
        if s.batch_statistics:
            use_batch_statistics(self.teacher)
        self.source = Anchor(list(self.model.parameters())) if s.restore else None
        self.detector = ChangeDetector(s.threshold, s.history, s.recent, s.significance)
        self.waiting = Waiting(s.gather)
        self.queue = Queue(s.queue_length, s.embedding_width, device, s.selection == "reservoir")
        self.prototypes = Prototypes(s.embedding_width, s.prototypes, s.previous_domains, device)
        self.cells = 1 if self.model.task == "classification" else s.grid**2
        self.aimed = False
        self.recorded: dict[str, Recorded] = {}
        images = self.model.task == "classification"  # pixels are compared in their places
        self.augment = Augmentation(s.augmentation, flip=s.flip, mask=s.mask, move=images)
        domain = [
            {
                "params": [*self.extractor.parameters(), *self.discriminator.parameters()],
                "lr": s.extractor_learning_rate,
            }
        ]
        if self.amplifier is not None:
            domain.append({"params": [*self.amplifier.parameters()], "lr": s.amplifier_learning_rate})
        self.domain_learner = Learner(domain, s.optimizer)
        self.encoder_learner = Learner([{"params": self.model.parameters(), "lr": s.learning_rate}], s.optimizer)
        self.requires_grad_(False)

    def infer(self, images: Tensor) -> Tensor:
        """Predict with the model whose predictions `step` returns."""
        return (self._teach(images) if self.settings.predict == "teacher" else self._run(images)).logits

    @torch.no_grad()
    def embed(
        self, images: Tensor, model: VisionModel | None = None, generator: torch.Generator | None = None
    ) -> Tensor:
        """Domain embeddings of images in [0, 1]: of the student, or of another model's features; nothing changes.

        With a generator, of the view of the images that the student learns from.
        """
        images = self.model.prepare(self._checked(images))
        if generator is not None and self.settings.view == "augmented":
            images = self.augment(images, generator)
        with self._autocast():
            return self._embed(self._run(images) if model is None else model(images))

    def step(self, images: Tensor) -> Tensor:
        """Predict a batch and learn from it: 5 forward-equivalents, one more while there is no previous domain.

        With the amplifier 7, because it moves between the two steps and trains through the activations.
        """
        seen = self._call("observe", images)
        confidence, *signal = self.to_host(seen["confidence"].mean(), seen["signal"])
        gathered = self.waiting.gather(images, seen["logits"], seen["confidence"])
        if gathered is None:
            self.diagnostics.update(confidence=confidence, change=False)
            return seen["logits"] if self.settings.predict == "teacher" else self.infer(images).detach()
        if len(gathered[0]) > len(images):
            confidence, *signal = self.to_host(gathered[2].mean(), self._signal(gathered[0], gathered[2]))
        self.diagnostics.update(confidence=confidence)
        self._notice_change(signal)
        self.queue.count(len(gathered[0]) * self.cells, confidence)
        self.aimed = self.aims and self.prototypes.aim(self.queue.confidence + self.settings.invariance_margin)
        key = (len(self.prototypes), self.asks_for_invariance, self.teacher_momentum)
        learnt = self._call("learn", *gathered, key=key)
        prediction = learnt.pop("prediction")
        self.diagnostics.update(learnt)
        return prediction[-len(images) :]

    def _call(self, name: str, *inputs: Tensor, key: Hashable = None) -> dict[str, Tensor]:
        """Run a part of the step, as a CUDA graph where that is asked for."""
        parts: dict[str, Function] = {"observe": self._observe, "select": self._select, "learn": self._learn}
        part = parts[name]
        if not self.settings.cuda_graphs or inputs[0].device.type != "cuda":
            return part(*inputs)
        recorded = self.recorded.setdefault(name, Recorded(part, self.generator))
        return recorded(key, *inputs)

    @torch.no_grad()
    def _observe(self, images: Tensor) -> dict[str, Tensor]:
        """Pass 1: the teacher's prediction, its confidence for each image or pixel, and what the detector watches."""
        logits = self._teach(images).logits
        confidence = logits.float().softmax(1).amax(1)
        return {"logits": logits, "confidence": confidence, "signal": self._signal(images, confidence)}

    def _learn(self, images: Tensor, taught: Tensor, confidence: Tensor) -> dict[str, Tensor]:
        """Both steps, the prototypes, the queue and the teacher. Gives the prediction and the diagnostics."""
        s = self.settings
        found: dict[str, Tensor] = {}
        view = self.augment(images, self.generator) if s.view == "augmented" else images
        reference = self._reference(images) if self.learns_domains else None
        prediction = taught if s.predict == "teacher" else self._student_prediction(images, view, reference)
        if reference is None:
            after = self._step_2(found, view, taught, confidence)
        else:
            output = self._encode(view)  # pass 2
            before = self._step_1(found, output, reference)  # an amplifier-only backward
            prediction = output.logits.detach() if prediction is None else prediction
            again = output if self.amplifier is None else None  # nothing that the pass depends on has moved
            after = self._step_2(found, view, taught, confidence, before, reference, again)
        self.queue.push(after, len(images), self.generator)
        self._move_teacher()
        assert prediction is not None
        return {**found, "prediction": prediction}

    @property
    def learns_domains(self) -> bool:
        """False for self-training alone."""
        return self.settings.discrimination or self.settings.invariance

    @property
    def asks_for_invariance(self) -> bool:
        """Whether L_inv takes part in the current batch."""
        s = self.settings
        early = s.invariance_batches is None or self.detector.count <= s.invariance_batches
        return s.invariance and early and self.batches % 50 >= s.invariance_pause and self.aimed == self.aims

    @property
    def aims(self) -> bool:
        """Whether L_inv asks for one of the previous domains, and not for all of the reference."""
        s = self.settings
        return s.invariance_to == "surest" and s.reference == "prototypes" and len(self.prototypes) > 0

    @property
    def teacher_momentum(self) -> float:
        """It may be another one when the stream has just begun or the domain has just changed."""
        s = self.settings
        new = self.detector.count <= s.change_batches
        return s.change_momentum if new and s.change_momentum is not None else s.momentum

    @torch.no_grad()
    def _student_prediction(self, images: Tensor, view: Tensor, reference: Tensor | None) -> Tensor | None:
        """The student's own prediction, where step 1 does not give it."""
        return None if view is images and reference is not None else self._run(images).logits

    # 3.1, 3.2: a new domain turns the queue into prototypes

    def _signal(self, images: Tensor, confidence: Tensor) -> Tensor:
        return confidence.mean() if self.settings.detect_by == "confidence" else appearance(images)

    def _notice_change(self, signal: list[float]) -> None:
        changed = self.detector.update(*signal)
        if changed and len(self.queue):
            embeddings, positions = self.queue.content()
            found = self._call("select", embeddings)
            chosen = found.pop("chosen")
            self.prototypes.add(embeddings[chosen], positions[chosen], self.queue.confidence)
            self.queue.clear()
            self.diagnostics.update(found)
        self.diagnostics.update(change=changed)

    def _select(self, embeddings: Tensor) -> dict[str, Tensor]:
        s = self.settings
        chosen = select(s.selection, embeddings, s.prototypes, s.gamma, self.generator)
        return {"chosen": chosen, "prototype_mmd2": selection_mmd2(embeddings, chosen, s.gamma)}

    def _reference(self, images: Tensor) -> Tensor | None:
        """Prototypes of previous domains; augmented images (or nothing) before the first change, or always if asked."""
        if not len(self.prototypes) and not self.settings.first_reference:
            return None
        kind = self.settings.reference if len(self.prototypes) else "augmented"
        if kind == "prototypes":
            return self.prototypes.current.clone()
        with torch.no_grad():
            augmented = self._embed(self._teach(self.augment(images, self.generator)))
        return augmented if kind == "augmented" else torch.cat([self.prototypes.current, augmented])

    # 3.3: the two steps

    def _encode(self, view: Tensor) -> Output:
        """Pass 2, ready for the gradients of the amplifier in step 1 or, without one, of the encoder in step 2."""
        s = self.settings
        if self.amplifier is None:
            with _trained([self.model], s.self_training or s.invariance):
                return self._run(view)
        with _trained([self.amplifier], s.discrimination):
            return self._run(view)

    def _step_1(self, found: dict[str, Tensor], output: Output, reference: Tensor) -> Tensor:
        """Amplifier, extractor and discriminator learn to tell the domains apart; encoder and head are frozen."""
        s = self.settings
        trained = [self.extractor, self.discriminator, *([self.amplifier] if self.amplifier is not None else [])]
        if self.amplifier is None:
            output = Output(*(part.detach() for part in output))
        with _trained(trained, s.discrimination):
            embeddings = self._embed(output)
            current, previous = self._discriminate(embeddings), self._discriminate(reference)
            if s.discrimination:
                loss = discrimination_loss(current, previous)
                self.domain_learner.step(s.discrimination_weight * loss)
                found["discrimination_loss"] = loss.detach()
        found["domain_accuracy"] = domain_accuracy(current, previous).detach()
        return embeddings.detach()

    def _step_2(
        self,
        found: dict[str, Tensor],
        view: Tensor,
        taught: Tensor,
        confidence: Tensor,
        before: Tensor | None = None,
        reference: Tensor | None = None,
        output: Output | None = None,
    ) -> Tensor:
        """Encoder and head follow the teacher and come to the prototypes; all else is frozen.

        `output` is the pass over the view where it is known. Gives the embeddings of the encoder that moved.
        """
        s = self.settings
        with _trained([self.model], s.self_training or s.invariance):
            output = self._run(view) if output is None else output  # pass 3, and a full backward
            embeddings = self._embed(output)
            loss = self._self_training(found, output.logits, taught, confidence)
            if before is not None and reference is not None:
                if s.prototype_updates == "twice":
                    reference = self._follow(found, before, embeddings.detach(), reference)
                    before = embeddings.detach()
                self._move_encoder(loss, self._invariance(found, embeddings, reference, confidence))
            else:
                self._move_encoder(loss)
        if before is None or reference is None:
            return embeddings.detach()
        with torch.no_grad():
            moved = self._embed(self._run(view))  # pass 4
        self._follow(found, before, moved, reference)
        return moved

    def _move_encoder(self, loss: Tensor, pull: Tensor | None = None) -> None:
        """Down the gradient of L_self and L_inv, the latter bounded where that is asked for."""
        learner, share = self.encoder_learner, self.settings.invariance_share
        total = loss if pull is None else loss + pull
        if share is not None and pull is not None and loss.requires_grad and pull.requires_grad:
            gradients = learner.gradients(loss, keep=True)
            learner.move(bounded_sum(gradients, learner.gradients(pull), share), total)
        elif total.requires_grad:
            learner.step(total)

    def _self_training(self, found: dict[str, Tensor], student: Tensor, teacher: Tensor, confidence: Tensor) -> Tensor:
        s = self.settings
        if not s.self_training:
            return student.new_zeros(())
        weights = confidence if s.confidence_weighting else None
        loss = self_training_loss(
            student, teacher, symmetric=s.symmetric, weights=weights, temperature=s.label_temperature
        )
        found["self_training_loss"] = loss.detach()
        return loss + s.diversity_weight * diversity_loss(student) if s.diversity_weight else loss

    def _invariance(
        self, found: dict[str, Tensor], embeddings: Tensor, reference: Tensor, confidence: Tensor
    ) -> Tensor:
        s = self.settings
        if not self.asks_for_invariance:
            return embeddings.new_zeros(())
        reference = self.prototypes.surest if self.aims else reference
        earlier = self.queue.held() if s.pairing == "ranked" and len(self.prototypes) else None
        loss = invariance_loss(embeddings, reference, s.pairing, self.generator, earlier)
        found["invariance_loss"] = loss.detach()
        share = 1 - confidence.mean() if s.uncertainty_weighting else 1.0
        return s.invariance_weight * share * loss

    # 3.4: prototypes follow the model

    def _follow(self, found: dict[str, Tensor], before: Tensor, after: Tensor, reference: Tensor) -> Tensor:
        s = self.settings
        count = len(self.prototypes)
        if not count or not s.prototype_update or s.reference == "augmented":
            return reference
        previous, others = reference[:count], reference[count:]
        moved = update_prototypes(
            DISTANCES[s.distance], before, after, previous, s.prototype_learning_rate, s.prototype_steps
        )
        found["prototype_drift"] = (moved - previous).norm(dim=1).mean()
        found["chamfer"] = chamfer(after, moved)
        self.prototypes.move(moved)
        return torch.cat([moved, others])

    # Parts

    def _run(self, images: Tensor) -> Output:
        return self.model(images) if self.amplifier is None else self.amplifier.run(self.model, images)

    def _teach(self, images: Tensor) -> Output:
        if self.teacher_amplifier is None:
            return self.teacher(images)  # type: ignore[no-any-return]
        return self.teacher_amplifier.run(self.teacher, images)

    def _embed(self, output: Output) -> Tensor:
        read = output.features if self.settings.embed_from == "features" else output.logits
        with torch.autocast(read.device.type, enabled=False):
            return self.extractor(domain_features(read, self.settings.grid))  # type: ignore[no-any-return]

    def _discriminate(self, embeddings: Tensor) -> Tensor:
        with torch.autocast(embeddings.device.type, enabled=False):
            return self.discriminator(embeddings)  # type: ignore[no-any-return]

    @torch.no_grad()
    def _move_teacher(self) -> None:
        s = self.settings
        if self.source is not None:
            restore(self.model.parameters(), self.source.values(), s.restore, self.generator)
        ema_update(self.teacher, self.model, self.teacher_momentum)
        if self.amplifier is not None and self.teacher_amplifier is not None:
            own = self.teacher_momentum if s.amplifier_momentum is None else s.amplifier_momentum
            ema_update(self.teacher_amplifier, self.amplifier, own)

    def load_state(self, tensors: Mapping[str, Tensor], values: Mapping[str, Any]) -> None:
        """Put back a state; recordings of steps on the old tensors are dropped."""
        super().load_state(tensors, values)
        self.recorded = {}

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> TestDG:
        super()._apply(fn, recurse)
        self.recorded = {}
        return self

    def adapted_model(self) -> VisionModel:
        """The predicting model with its amplifier merged into the weights."""
        teacher = self.settings.predict == "teacher"
        model = frozen_copy(self.teacher if teacher else self.model)
        amplifier = self.teacher_amplifier if teacher else self.amplifier
        if amplifier is not None:
            model.load_state_dict(amplifier.merged(model), strict=False)
        return model


@contextmanager
def _trained(modules: list[nn.Module], active: bool) -> Iterator[None]:
    """Let gradients reach some modules alone, and none at all where there is nothing to learn."""
    for module in modules:
        module.requires_grad_(active)
    try:
        with torch.set_grad_enabled(active):
            yield
    finally:
        for module in modules:
            module.requires_grad_(False)
