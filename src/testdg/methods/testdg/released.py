"""What the authors' released classification code does, where it differs from the text of the paper.

The code is three programs, one for each benchmark; `released_for` says which. Where the comments below say nothing,
all three agree.
"""

from collections.abc import Iterable, Sequence
from itertools import pairwise

import torch
from torch import Generator, Tensor, nn

from testdg.core.weights import Anchor, ema_update, frozen_copy, restore
from testdg.methods.parts.bottleneck import Bottleneck
from testdg.methods.testdg.learning import mlp
from testdg.methods.testdg.memory import ChangeDetector
from testdg.methods.testdg.method import TestDG, Update
from testdg.methods.testdg.networks import trained
from testdg.methods.testdg.selection import squared_distances
from testdg.methods.testdg.update import DISTANCES, Distance, update_loss
from testdg.models import Output, VisionModel

PERIOD, PAUSE = 50, 20
"""L_inv is left out in the first 20 of every 50 batches."""
RESTORED = 0.1
"""Share of the weights of encoder and head that return to the source after every batch (not in ImageNet-C)."""


class LateDetector(ChangeDetector):
    """Compare the confidence of a batch with those of the two before it, and act on a jump one batch later.

    So the first comparison is made for the third batch, and one jump is found, and acted on, twice. The released code
    also drops a jump that it finds in the last batch of a corruption; an adapter does not know which batch that is.
    """

    plain = ("past", "due")

    def __init__(self, threshold: float) -> None:
        super().__init__(threshold)
        self.due = False

    def update(self, confidence: float) -> bool:
        """Add the mean confidence of a batch; True if the batch before it jumped."""
        changed = self.due
        self.due = len(self.past) == 2 and any(abs(confidence - value) > self.threshold for value in self.past)
        self.past = [*self.past, confidence][-2:]
        return changed


class TestDGReleased(TestDG):
    """The amplifier takes part in every pass and learns L_self too; most weights are pulled back to the source."""

    embedding_width = 4
    needs_features = False  # the extractor reads logits
    detector_class = LateDetector
    default_gamma = 1.0

    def build_networks(self) -> None:
        super().build_networks()
        if self.amplifier is not None:
            start_small(self.amplifier, self.generator)
        self.teacher_amplifier = None if self.amplifier is None else frozen_copy(self.amplifier)
        restores = self.settings.released_for != "imagenet-c"
        self.source = Anchor(list(self.model.parameters())) if restores else None

    def domain_networks(self) -> tuple[nn.Sequential, nn.Sequential]:
        classes = self.model.classes
        hidden = (31, 7) if self.settings.released_for == "imagenet-c" else (2 * classes,)
        extractor = bias_free_mlp([classes, *hidden, self.embedding_width], self.generator)
        discriminator = mlp([self.embedding_width, 16, 8, 1], nn.ReLU, self.generator)
        for layer in discriminator:
            if isinstance(layer, nn.Linear):
                with torch.no_grad():
                    layer.bias.uniform_(-(layer.in_features**-0.5), layer.in_features**-0.5, generator=self.generator)
        return extractor, discriminator

    def learn_source(self, batches: Iterable[tuple[Tensor, Tensor]]) -> None:
        """Warm up the amplifier; the teacher's starts as a copy of it."""
        super().learn_source(batches)
        if self.amplifier is not None and self.teacher_amplifier is not None:
            ema_update(self.teacher_amplifier, self.amplifier, 0.0)

    def infer(self, images: Tensor) -> Tensor:
        return self._teacher_pass(images).logits

    def predicting_model(self) -> VisionModel:
        model = frozen_copy(self.teacher)
        if self.teacher_amplifier is not None:
            model.load_state_dict(self.teacher_amplifier.merged(self.teacher), strict=False)
        return model

    def step(self, images: Tensor) -> Tensor:
        """Predict a batch and learn from it: 7 forward-equivalents, 6 on CIFAR100-C after the first change."""
        amplifier: list[nn.Module] = [] if self.amplifier is None else [self.amplifier]
        with trained(amplifier, True):
            output = self._domain_pass(images)
        taught = self._teach(images)
        self._observe(taught)
        first = self.learns_domains and not len(self.prototypes)
        augmented = self._augmented_pass(images) if first else None
        with trained([self.extractor, self.discriminator, *amplifier], True):
            before = self._embed(output)
            self.queue.push(before.detach(), len(images), self.generator)  # before it learns from them
            waiting = self._train_domain(before, output, taught, augmented)
        self._train_encoder(images, taught, augmented, before.detach(), waiting)
        self._move_teacher()
        return taught

    def _train_domain(self, before: Tensor, output: Output, taught: Tensor, augmented: Output | None) -> Update | None:
        """Step 1: w L_dis for extractor and discriminator, L_self + w L_dis for the amplifier.

        On CIFAR100-C the amplifier's update is returned: there it is made together with that of the encoder.
        """
        s, learner = self.settings, self.amplifier_learner
        loss = before.new_zeros(())
        if s.discrimination:  # unlike in the text, gradients reach the extractor through both sets
            reference = self.prototypes.current.clone() if augmented is None else self._embed(augmented)
            loss = s.discrimination_weight * self._discrimination(before, reference)
        if s.self_training:
            loss = loss + self._self_training(output, taught)
        if not loss.requires_grad:
            return None
        gradients = self.domain_learner.gradients(loss, keep=learner is not None)
        update = None if learner is None else Update(learner, learner.gradients(loss), loss.detach())
        self._move(self.domain_learner, gradients, loss)
        if update is None or s.released_for == "cifar100-c":
            return update
        self._move(*update)
        return None

    def _train_encoder(
        self, images: Tensor, taught: Tensor, augmented: Output | None, before: Tensor, waiting: Update | None
    ) -> None:
        """Step 2: L_self + w L_inv for encoder and head, with the prototypes replaced before it and after it."""
        s, paused = self.settings, self.batches % PERIOD < PAUSE
        with trained([self.model], s.self_training or s.invariance):
            output = self._domain_pass(images)
            between = self._embed(output)
            self._follow(before, between.detach())
            loss = between.new_zeros(())
            if s.self_training:
                loss = self._self_training(output, taught)
            if s.invariance and not paused:
                gap = paired_loss(between, self._reference(augmented))
                self.diagnostics["invariance_loss"] = gap.detach()
                loss = loss + s.invariance_weight * gap
            gradients = self.encoder_learner.gradients(loss) if loss.requires_grad else ()
        if waiting is not None:
            self._move(*waiting)
        self._move(self.encoder_learner, gradients, loss)
        if len(self.prototypes) and self.learns_domains:
            before, after = before if paused else between.detach(), between.detach()
            if s.released_for != "cifar100-c":
                with torch.no_grad():
                    after = self._embed(self._domain_pass(images))
            self._follow(before, after)

    def _teacher_pass(self, images: Tensor) -> Output:
        if self.teacher_amplifier is None:
            return self.teacher(images)  # type: ignore[no-any-return]
        return self.teacher_amplifier.run(self.teacher, images)

    def _teach(self, images: Tensor) -> Tensor:
        with torch.no_grad():
            return self._teacher_pass(images).logits

    @torch.no_grad()
    def _augmented_pass(self, images: Tensor) -> Output:
        return self._teacher_pass(self.augment(images, self.generator))

    def _embed(self, output: Output) -> Tensor:
        return self._extract(output.logits)

    def _updated(self, before: Tensor, after: Tensor, previous: Tensor) -> Tensor:
        s = self.settings
        rate, steps = s.prototype_learning_rate, s.prototype_steps
        return noise_prototypes(DISTANCES_RELEASED[s.distance], before, after, previous, rate, steps, self.generator)

    @torch.no_grad()
    def _move_teacher(self) -> None:
        """The moving average; then some weights of the student return to the source, but none of its amplifier."""
        super()._move_teacher()
        s = self.settings
        if self.amplifier is not None and self.teacher_amplifier is not None:
            own = s.momentum if s.amplifier_momentum is None else s.amplifier_momentum
            ema_update(self.teacher_amplifier, self.amplifier, own)
        if self.source is not None:
            restore(self.model.parameters(), self.source.values(), RESTORED, self.generator)


@torch.no_grad()
def start_small(amplifier: Bottleneck, generator: Generator) -> None:
    """Draw the down-projections from a normal distribution with standard deviation 1 / rank^2, as ViDA does."""
    for down in amplifier.down.values():
        down.normal_(generator=generator).div_(down.shape[1] ** 2)


def bias_free_mlp(widths: Sequence[int], generator: Generator) -> nn.Sequential:
    """Linear layers without biases and GELU between them, drawn uniformly from +-sqrt(3 / outputs).

    That is He's uniform start with slope 1 of matrices stored as (inputs, outputs), whose fan is the number of outputs.
    """
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise(widths):
        layers += [nn.GELU()] if layers else []
        layer = nn.Linear(inputs, outputs, bias=False, device=generator.device)
        with torch.no_grad():
            layer.weight.uniform_(-((3 / outputs) ** 0.5), (3 / outputs) ** 0.5, generator=generator)
        layers.append(layer)
    return nn.Sequential(*layers)


def paired_loss(current: Tensor, reference: Tensor) -> Tensor:
    """Equation 6 with row i of the one paired with row i of the other (mean over pairs and dimensions)."""
    rows = torch.arange(len(current), device=current.device) % len(reference)
    return (current - reference[rows]).abs().mean()


def mean_chamfer(x: Tensor, y: Tensor) -> Tensor:
    """Equation 8 with means of plain distances in the place of sums of squared ones."""
    pairs = squared_distances(x, y).clamp(min=1e-12).sqrt()
    return pairs.min(1).values.mean() + pairs.min(0).values.mean()


DISTANCES_RELEASED = {**DISTANCES, "chamfer": mean_chamfer}


def noise_prototypes(
    distance: Distance,
    before: Tensor,
    after: Tensor,
    previous: Tensor,
    learning_rate: float,
    steps: int,
    generator: Generator,
) -> Tensor:
    """Replace the prototypes by random vectors that take a few steps down equation 7.

    Every step has a new Adam, so each is a first one: nearly the sign of the gradient. The result is nearly noise.
    """
    prototypes = torch.randn(previous.shape, generator=generator, device=previous.device, dtype=previous.dtype)
    with torch.enable_grad(), torch.autocast(previous.device.type, enabled=False):
        for _ in range(steps):
            prototypes.requires_grad_(True)
            loss = update_loss(distance, before, after, previous, prototypes)
            (gradient,) = torch.autograd.grad(loss, prototypes)
            move = (gradient / (gradient.abs() + 1e-8)).nan_to_num()  # one bad batch must not spoil all that follow
            prototypes = (prototypes - learning_rate * move).detach()
    return prototypes
