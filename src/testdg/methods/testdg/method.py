"""TestDG: one batch, from the detection of a new domain to the update of the prototypes."""

from collections.abc import Callable

import torch
from torch import Tensor

from testdg.data.augmentation import Augmentation
from testdg.methods import Learner, Search, register
from testdg.methods.parts.normalisation import follow_statistics
from testdg.methods.testdg.detection import ChangeDetector
from testdg.methods.testdg.learning import discrimination_loss, domain_accuracy, invariance_loss, self_training_loss
from testdg.methods.testdg.memory import Prototypes, Queue
from testdg.methods.testdg.networks import Networks, trained
from testdg.methods.testdg.selection import select, selection_mmd2
from testdg.methods.testdg.settings import PRESETS, TestDGSettings
from testdg.methods.testdg.update import chamfer, fresh_prototypes, update_prototypes
from testdg.models import Output

Tensors = dict[str, Tensor]
PERIOD = 50
"""Batches after which the released code pauses L_inv again."""


@register
class TestDG(Networks):
    """Learn features that are invariant to the current and the previous domain, on the fly.

    Step 1 trains amplifier, extractor and discriminator to tell the current domain from prototypes of the previous
    one; step 2 trains encoder and head to follow the teacher and to make the two domains alike.
    """

    __test__ = False  # not a test class, whatever its name begins with

    name = "testdg"
    title = "TestDG"
    citation = "Lee et al., TestDG: Test-time Domain Generalization for Continual Test-time Adaptation, TMLR 2026"
    example_error = 22.0
    tasks = ("classification", "segmentation")
    needs = "for the amplifier, attention or convolutions"
    source_data = "warming up the amplifier, if asked (source_images=0, the default, goes without)"
    source_labels = True
    Settings = TestDGSettings
    settings: TestDGSettings
    search = Search(
        rates=(0.03, 0.1, 0.3, 1),
        values={"threshold": (0.05, 0.1, 0.2)},
        variants={"released": {"as_released": True}, "warm": {"source_images": 12800}},
    )
    presets = PRESETS
    checks_input_late = True

    def build(self) -> None:
        """Make networks, teacher, memory and optimisers."""
        s, device = self.settings, self.model.device
        self.build_networks()
        rules = self.rules
        self.gamma = rules.gamma if s.gamma is None else s.gamma
        self.detector = ChangeDetector(s.threshold, rules.history, rules.late)
        self.queue = Queue(s.queue_length, rules.embedding_width, device, s.selection == "reservoir")
        self.prototypes = Prototypes(rules.embedding_width, s.prototypes, s.previous_domains, device)
        whole = self.model.task == "classification"  # otherwise pixels are compared in their places
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

    # One batch

    def step(self, images: Tensor) -> Tensor:
        """Predict a batch and learn from it: 7 forward-equivalents, one more while there is no previous domain.

        A recording cannot hand its gradients to another one: there, step 1 runs the student once more.
        """
        recording = self.settings.cuda_graphs and images.device.type == "cuda"
        output = None if recording else self._encode(images, self._run_first)
        if output is None:
            seen = self.record("observe", self._observe, images)
        else:
            seen = self._observe(images, output.logits.detach())
        (confidence,) = self.to_host(seen["confidence"])
        self.diagnostics.update(confidence=confidence)
        self._notice_change(confidence)
        self.queue.count(len(images) * self.cells)
        if output is None:
            key = len(self.prototypes), self.asks_for_invariance
            diagnostics = self.record("learn", self._learn, images, seen["taught"], key=key)
        else:
            diagnostics = self._learn(images, seen["taught"], output)
        self.diagnostics.update(diagnostics)
        return seen["prediction"]

    @torch.no_grad()
    def _observe(self, images: Tensor, own: Tensor | None = None) -> Tensors:
        """The teacher's prediction, the one that is returned, and its mean confidence."""
        with follow_statistics(self.teacher):
            taught = prediction = self._teach(images).logits
        if self.rules.predict == "student":
            prediction = self._run_first(images).logits if own is None else own
        confidence = prediction.float().softmax(1).amax(1).mean()
        return {"taught": taught, "prediction": prediction, "confidence": confidence}

    def _learn(self, images: Tensor, taught: Tensor, output: Output | None = None) -> Tensors:
        """Both steps, the prototypes, the queue and the teacher; `output` is the student's first pass."""
        diagnostics: Tensors = {}
        if output is None:
            output = self._encode(images, self._run if self.rules.predict == "student" else self._run_first)
        augmented = None
        if self.learns_domains and not len(self.prototypes):  # what the first domain is compared with
            with torch.no_grad():
                augmented = self._teach(self.augment(images, self.generator))
        before = self._step_1(diagnostics, output, taught, augmented)
        again = None if self.amplifier_learns else output  # what the pass depends on has not moved
        after = self._step_2(diagnostics, images, again, taught, augmented, before)
        self.queue.push(after, len(images), self.generator)
        self._move_teacher()
        return diagnostics

    @property
    def learns_domains(self) -> bool:
        """False for self-training alone."""
        return self.settings.discrimination or self.settings.invariance

    @property
    def amplifier_learns(self) -> bool:
        """Whether step 1 moves the amplifier."""
        s = self.settings
        return s.amplifier and (s.discrimination or (s.self_training and self.rules.amplifier_self_training))

    @property
    def asks_for_invariance(self) -> bool:
        """Whether L_inv takes part in the current batch."""
        return self.settings.invariance and self.batches % PERIOD >= self.rules.pause

    # 3.1, 3.2: a new domain turns the queue into prototypes

    def _notice_change(self, confidence: float) -> None:
        changed = self.detector.update(confidence)
        if changed and len(self.queue):
            embeddings, positions = self.queue.content()
            picked = self.record("select", self._select, embeddings)
            chosen = picked.pop("chosen")
            self.prototypes.add(embeddings[chosen], positions[chosen])
            self.queue.clear()
            self.diagnostics.update(picked)
        self.diagnostics.update(change=changed)

    def _select(self, embeddings: Tensor) -> Tensors:
        s = self.settings
        chosen = select(s.selection, embeddings, s.prototypes, self.gamma, self.generator)
        return {"chosen": chosen, "prototype_mmd2": selection_mmd2(embeddings, chosen, self.gamma)}

    def _reference(self, augmented: Output | None) -> Tensor:
        """Prototypes; in the first domain, embeddings of augmented images by the extractor as it is now."""
        if augmented is None:
            return self.prototypes.current.clone()
        with torch.no_grad():
            return self._embed(augmented)

    # 3.3: the two steps

    def _encode(self, images: Tensor, run: Callable[[Tensor], Output]) -> Output:
        """The student's first pass, with gradients for whichever step is the first to need them."""
        if self.amplifier is not None and self.amplifier_learns:
            with trained([self.amplifier], True):
                return run(images)
        with trained([self.model], self.settings.self_training or self.settings.invariance):
            return run(images)

    def _step_1(self, diagnostics: Tensors, output: Output, taught: Tensor, augmented: Output | None) -> Tensor:
        """Amplifier, extractor and discriminator learn to tell the domains apart; gives the embeddings before that."""
        s = self.settings
        if not self.amplifier_learns:
            output = Output(*(part.detach() for part in output))
        parts = [self.extractor, self.discriminator, *([self.amplifier] if self.amplifier is not None else [])]
        with trained(parts, s.discrimination or self.amplifier_learns):
            embeddings = self._embed(output)
            loss = embeddings.new_zeros(())
            if self.learns_domains:
                current, previous = self._discriminate(embeddings), self._discriminate(self._reference(augmented))
                diagnostics["domain_accuracy"] = domain_accuracy(current, previous).detach()
            if s.discrimination:
                loss = discrimination_loss(current, previous)
                diagnostics["discrimination_loss"] = loss.detach()
                loss = s.discrimination_weight * loss
            if s.self_training and self.rules.amplifier_self_training:
                loss = loss + self_training_loss(output.logits, taught, symmetric=s.symmetric)
            if loss.requires_grad:
                self._move_domain(loss)
        return embeddings.detach()

    def _move_domain(self, loss: Tensor) -> None:
        """Step extractor and discriminator (through them alone, which costs nothing) and the amplifier."""
        gradients = self.domain_learner.gradients(loss, keep=self.amplifier_learns)
        self.keep(self.domain_learner.held())  # the passes of step 2 are still to come
        if self.amplifier_learner is not None and self.amplifier_learns:
            self.keep(self.amplifier_learner.held())
            self.amplifier_learner.step(loss)
        self.domain_learner.move(gradients, loss)

    def _step_2(
        self,
        diagnostics: Tensors,
        images: Tensor,
        output: Output | None,
        taught: Tensor,
        augmented: Output | None,
        before: Tensor,
    ) -> Tensor:
        """Encoder and head follow the teacher and come to the prototypes; gives the embeddings after that."""
        s = self.settings
        with trained([self.model], s.self_training or s.invariance):
            output = self._run(images) if output is None else output
            embeddings = self._embed(output)
            if self.rules.update_twice:
                self._follow(diagnostics, before, embeddings.detach())
                before = embeddings.detach()
            loss = embeddings.new_zeros(())
            if s.self_training:
                loss = self_training_loss(output.logits, taught, symmetric=s.symmetric)
                diagnostics["self_training_loss"] = loss.detach()
            if self.asks_for_invariance:
                gap = invariance_loss(embeddings, self._reference(augmented), self.generator)
                diagnostics["invariance_loss"] = gap.detach()
                loss = loss + s.invariance_weight * gap
            if loss.requires_grad:
                self._move_encoder(loss)
        if not self.learns_domains:
            return embeddings.detach()
        with torch.no_grad():
            after = self._embed(self._run(images))
        self._follow(diagnostics, before, after)
        return after

    def _move_encoder(self, loss: Tensor) -> None:
        """Step encoder and head; where another pass follows, what they were is kept until the batch is done."""
        gradients = self.encoder_learner.gradients(loss)
        if self.learns_domains:
            self.keep(self.encoder_learner.held())  # after the backward pass, whose memory is free again
        self.encoder_learner.move(gradients, loss)

    # 3.4: prototypes follow the model

    def _follow(self, diagnostics: Tensors, before: Tensor, after: Tensor) -> None:
        s, rules = self.settings, self.rules
        if not len(self.prototypes) or not s.prototype_update or not self.learns_domains:
            return
        previous = self.prototypes.current.clone()
        given = rules.distances[s.distance], before, after, previous, s.prototype_learning_rate, s.prototype_steps
        moved = fresh_prototypes(*given, self.generator) if rules.fresh else update_prototypes(*given)
        diagnostics["prototype_drift"] = (moved - previous).norm(dim=1).mean()
        diagnostics["chamfer"] = chamfer(after, moved)
        self.prototypes.move(moved)
