"""TestDG: one batch, from the detection of a new domain to the update of the prototypes."""

from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple, Self

import torch
from torch import Tensor, nn

from testdg.data.augmentation import Augmentation
from testdg.methods import Learner, Search, register
from testdg.methods.testdg.learning import discrimination_loss, domain_accuracy, invariance_loss, self_training_loss
from testdg.methods.testdg.memory import ChangeDetector, Prototypes, Queue
from testdg.methods.testdg.networks import Networks, trained
from testdg.methods.testdg.selection import select, selection_mmd2
from testdg.methods.testdg.settings import PRESETS, TestDGSettings
from testdg.methods.testdg.update import DISTANCES, chamfer, update_prototypes
from testdg.models import Output


class Update(NamedTuple):
    """An update that can be applied later: its gradients are computed."""

    learner: Learner
    gradients: tuple[Tensor | None, ...]
    loss: Tensor


@register
class TestDG(Networks):
    """Learn features that are invariant to the current and the previous domain, during the stream.

    Step 1 trains amplifier, extractor and discriminator to separate the current domain from prototypes of the previous
    one; step 2 trains encoder and head to follow the teacher and to make the two domains alike.
    """

    __test__ = False  # pytest takes a class of this name for a test

    name = "testdg"
    title = "TestDG"
    citation = "Lee et al., TestDG: Test-time Domain Generalization for Continual Test-time Adaptation, TMLR 2026"
    example_error = 22.5
    tasks = ("classification", "segmentation")
    needs = "for the amplifier, attention or convolutions"
    source_data = "an optional warm-up of the amplifier (none with source_images=0, the default)"
    source_labels = True
    Settings = TestDGSettings
    settings: TestDGSettings
    search = Search(
        rates=(0.1, 0.3, 1),
        values={"predict": ("student", "teacher"), "early": (0, 50)},
        variants={"released": {"as_released": True}, "warm": {"source_images": 12800}},
    )
    presets = PRESETS
    checks_input_late = True
    detector_class: ClassVar[type[ChangeDetector]] = ChangeDetector
    default_gamma: ClassVar[float | None] = None
    """Width of the RBF kernel if the settings do not give one; None: median heuristic."""

    def __new__(cls, *_: Any, **settings: Any) -> Self:
        """With the setting `as_released`, create the subclass that follows the released code."""
        from testdg.methods.testdg.released import TestDGReleased

        released = cls is TestDG and settings.get("as_released") is True
        return super().__new__(TestDGReleased if released else cls)  # type: ignore[return-value]

    def build(self) -> None:
        s, device, width = self.settings, self.model.device, self.embedding_width
        self.build_networks()
        self.gamma = self.default_gamma if s.gamma is None else s.gamma
        self.detector = self.detector_class(s.threshold)
        self.queue = Queue(s.queue_length, width, device, s.selection == "reservoir")
        self.prototypes = Prototypes(width, s.prototypes, s.previous_domains, device)
        whole = self.model.task == "classification"  # otherwise every pixel must stay in its place
        self.cells = 1 if whole else s.grid**2
        self.augment = Augmentation(flip=s.flip, move=whole)
        domain = [*self.extractor.parameters(), *self.discriminator.parameters()]
        self.domain_learner = Learner([{"params": domain, "lr": s.extractor_learning_rate}])
        self.encoder_learner = Learner([{"params": self.model.parameters(), "lr": s.learning_rate}], s.optimizer)
        self.amplifier_learner = None
        if self.amplifier is not None:
            group = {"params": self.amplifier.parameters(), "lr": s.amplifier_learning_rate}
            self.amplifier_learner = Learner([group], s.optimizer)
        self.requires_grad_(False)

    def step(self, images: Tensor) -> Tensor:
        """Predict a batch and learn from it: 10 forward-equivalents, without an amplifier 5.

        Before the first change there is one more, for the augmented images. The encoder does not change before step 2,
        so one plain pass serves the prediction and L_self. Step 1 writes weights before the last pass; `_move` copies
        them first, so that the step can still be undone.
        """
        s = self.settings
        with trained([self.model], s.self_training or (s.invariance and self.amplifier is None)):
            plain: Output = self.model(images)
        taught = self._teach(images)
        prediction = plain.logits.detach() if s.predict == "student" else taught
        self._observe(prediction)
        by_self = self._self_training_update(plain, taught)
        if not self.learns_domains:
            self._step_2(by_self, taught)
        else:
            domain = self._first_domain_pass(images, plain)
            augmented = None if len(self.prototypes) else self._augmented_pass(images)
            before = self._step_1(domain, augmented)
            domain = self._second_domain_pass(images, domain)
            self._step_2(by_self, taught, domain, augmented)
            with torch.no_grad():
                after = self._embed(self._domain_pass(images))
            self._follow(before, after)
            self.queue.push(after, len(images), self.generator)
        self._move_teacher()
        return prediction

    @property
    def learns_domains(self) -> bool:
        """False for self-training alone."""
        return self.settings.discrimination or self.settings.invariance

    @property
    def amplifier_learns(self) -> bool:
        """Whether step 1 moves the amplifier."""
        return self.amplifier is not None and self.settings.discrimination

    # 3.1, 3.2: a new domain turns the queue into prototypes

    def _observe(self, prediction: Tensor) -> None:
        """Look for a domain change, before anything learns from the batch."""
        (confidence,) = self.to_host(prediction.float().softmax(1).amax(1).mean())
        changed = self.detector.update(confidence)
        if changed and len(self.queue):
            self._choose_prototypes()
            self.queue.clear()
        self.diagnostics.update(confidence=confidence, change=changed)
        if early := self.settings.early:
            for learner in (self.encoder_learner, self.amplifier_learner):
                if learner is not None:
                    learner.scale_rates(min(1.0, (self.batches + 1) / early))

    def _choose_prototypes(self) -> None:
        """Choose prototypes from the queue."""
        s = self.settings
        embeddings, positions = self.queue.content()
        chosen = select(s.selection, embeddings, s.prototypes, self.gamma, self.generator)
        self.prototypes.add(embeddings[chosen], positions[chosen])
        self.diagnostics["prototype_mmd2"] = selection_mmd2(embeddings, chosen, self.gamma)

    def _reference(self, augmented: Output | None) -> Tensor:
        """Prototypes of the previous domain; in the first domain, augmented images by the current extractor."""
        if augmented is None:
            return self.prototypes.current.clone()
        with torch.no_grad():
            return self._embed(augmented)

    # 3.3: the two steps

    def _first_domain_pass(self, images: Tensor, plain: Output) -> Output:
        """The pass before step 1, with gradients for the amplifier if step 1 trains it, else for the encoder."""
        if self.amplifier is None:
            return plain
        with trained([self.amplifier if self.amplifier_learns else self.model], True):
            return self._domain_pass(images)

    def _second_domain_pass(self, images: Tensor, domain: Output) -> Output:
        """The pass after step 1, for L_inv; the first pass is reused if step 1 did not change the amplifier."""
        if not (self.amplifier_learns and self.settings.invariance):
            return domain
        with trained([self.model], True):
            return self._domain_pass(images)

    @torch.no_grad()
    def _augmented_pass(self, images: Tensor) -> Output:
        """The pass of augmented images, which replace the previous domain while there is none."""
        return self._domain_pass(self.augment(images, self.generator))

    def _step_1(self, domain: Output, augmented: Output | None) -> Tensor:
        """Amplifier, extractor and discriminator learn L_dis. Returns the embeddings from before the update."""
        s = self.settings
        if not self.amplifier_learns:
            domain = Output(*(part.detach() for part in domain))
        parts: list[nn.Module] = [self.extractor, self.discriminator]
        parts += [] if self.amplifier is None else [self.amplifier]
        with trained(parts, s.discrimination):
            embeddings = self._embed(domain)
            loss = s.discrimination_weight * self._discrimination(embeddings, self._reference(augmented))
            if s.discrimination:
                self._move_domain(loss)
        return embeddings.detach()

    def _discrimination(self, embeddings: Tensor, reference: Tensor) -> Tensor:
        """L_dis of the current embeddings and those of the previous domain."""
        current, previous = self._discriminate(embeddings), self._discriminate(reference)
        loss = discrimination_loss(current, previous)
        self.diagnostics["domain_accuracy"] = domain_accuracy(current, previous).detach()
        if self.settings.discrimination:
            self.diagnostics["discrimination_loss"] = loss.detach()
        return loss

    def _move_domain(self, loss: Tensor) -> None:
        """Update extractor, discriminator and amplifier. All gradients are computed before any weight is written."""
        gradients = self.domain_learner.gradients(loss, keep=self.amplifier_learns)
        others = None if self.amplifier_learner is None else self.amplifier_learner.gradients(loss)
        self._move(self.domain_learner, gradients, loss)
        if self.amplifier_learner is not None and others is not None:
            self._move(self.amplifier_learner, others, loss)

    def _move(self, learner: Learner, gradients: tuple[Tensor | None, ...], loss: Tensor) -> None:
        """Update the weights of a learner; `keep` copies them first, since later passes of the step may still fail."""
        self.keep(learner.written())
        learner.move(gradients, loss)

    def _self_training_update(self, plain: Output, taught: Tensor) -> Update | None:
        """The gradients of L_self, computed before step 1, so that memory never holds two passes of the student.

        None without L_self, and None if the same pass serves L_inv: `_step_2` then computes both gradients together.
        """
        s = self.settings
        if not s.self_training or (self.amplifier is None and s.invariance):
            return None
        with trained([self.model], True):
            loss = self._self_training(plain, taught)
            return Update(self.encoder_learner, self.encoder_learner.gradients(loss), loss.detach())

    def _step_2(
        self, by_self: Update | None, taught: Tensor, domain: Output | None = None, augmented: Output | None = None
    ) -> None:
        """Encoder and head learn L_self on the plain path and L_inv on the domain path."""
        s, learner, update = self.settings, self.encoder_learner, by_self
        if s.invariance and domain is not None:
            with trained([self.model], True):
                gap = invariance_loss(self._embed(domain), self._reference(augmented), self.generator)
                self.diagnostics["invariance_loss"] = gap.detach()
                loss = s.invariance_weight * gap
                if s.self_training and by_self is None:
                    loss = loss + self._self_training(domain, taught)
                gradients = learner.gradients(loss)
            if by_self is not None:
                gradients, loss = added(by_self.gradients, gradients), by_self.loss + loss.detach()
            update = Update(learner, gradients, loss)
        if update is not None:
            self._move(*update)

    def _self_training(self, output: Output, taught: Tensor) -> Tensor:
        loss = self_training_loss(output.logits, taught, symmetric=self.settings.symmetric)
        self.diagnostics["self_training_loss"] = loss.detach()
        return loss

    # 3.4: prototypes follow the model

    def _follow(self, before: Tensor, after: Tensor) -> None:
        """Update the prototypes, given the embeddings of this batch before and after the model moved."""
        s = self.settings
        if not len(self.prototypes) or not s.prototype_update:
            return
        previous = self.prototypes.current.clone()
        moved = self._updated(before, after, previous)
        self.diagnostics["prototype_drift"] = (moved - previous).norm(dim=1).mean()
        self.diagnostics["chamfer"] = chamfer(after, moved)
        self.prototypes.move(moved)

    def _updated(self, before: Tensor, after: Tensor, previous: Tensor) -> Tensor:
        s = self.settings
        return update_prototypes(
            DISTANCES[s.distance], before, after, previous, s.prototype_learning_rate, s.prototype_steps
        )


def added(one: Sequence[Tensor | None], other: Sequence[Tensor | None]) -> tuple[Tensor | None, ...]:
    """Add gradients pairwise; None counts as zero."""
    sums: list[Tensor | None] = []
    for a, b in zip(one, other, strict=True):
        sums.append(a + b if a is not None and b is not None else b if a is None else a)
    return tuple(sums)
