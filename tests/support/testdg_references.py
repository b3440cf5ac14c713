"""Batches of TestDG in plain torch, without the library's step: as the paper writes them, and as its code does."""

import copy
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from support.literal import average
from testdg.data.augmentation import Augmentation
from testdg.methods.testdg import TestDG


class Reference:
    """Copies of the networks of an adapter before its first batch, and what both versions have in common."""

    def __init__(self, adapter: TestDG, settings: dict[str, Any]) -> None:
        self.settings = settings
        for name in ("model", "teacher", "amplifier", "extractor", "discriminator"):
            part = copy.deepcopy(getattr(adapter, name))
            setattr(self, name, None if part is None else part.requires_grad_(True))
        self.generator = torch.Generator()
        self.generator.set_state(adapter.generator.get_state())
        self.number = 0
        self.queue: list[Tensor] = []
        self.prototypes: Tensor | None = None
        self.confidences: list[float] = []
        self.changes: list[bool] = []
        domain = [*self.extractor.parameters(), *self.discriminator.parameters()]
        nesterov: dict[str, Any] = {"momentum": 0.9, "nesterov": True, "foreach": False}
        self.domain = torch.optim.Adam(domain, settings["extractor_learning_rate"], foreach=False)
        waves = [torch.zeros(1, requires_grad=True)] if self.amplifier is None else self.amplifier.parameters()
        self.waves = torch.optim.SGD(waves, settings["amplifier_learning_rate"], **nesterov)
        self.encoder = torch.optim.SGD(self.model.parameters(), settings["learning_rate"], **nesterov)

    def begin_domain(self) -> None:
        """Choose prototypes by greedy maximisation of J, each candidate scored from scratch."""
        if not self.queue:
            return
        kernel = (-self.settings["gamma"] * torch.cdist(x := torch.stack(self.queue).double(), x) ** 2).exp()
        chosen: list[int] = []
        while len(chosen) < min(self.settings["prototypes"], len(self.queue)):
            rest = [i for i in range(len(self.queue)) if i not in chosen]
            some = [[*chosen, i] for i in rest]
            scores = [float(2 * kernel[:, s].mean() - kernel[s][:, s].mean()) for s in some]
            chosen.append(rest[scores.index(max(scores))])
        self.prototypes, self.queue = torch.stack([self.queue[i] for i in chosen]), []

    def push(self, embeddings: Tensor) -> None:
        self.queue = [*self.queue, *embeddings.detach()][-self.settings["queue_length"] :]

    def amplified(self, images: Tensor, model: Any, amplifier: Any) -> tuple[Tensor, Tensor]:
        """Logits and features with the amplifier."""
        logits, features = (
            model(images) if amplifier is None else functional_call(model, amplifier.merged(model), (images,))
        )
        return logits, features

    def discrimination(self, now: Tensor, before: Tensor) -> Tensor:
        current, previous = (self.discriminator(f).sigmoid().flatten() for f in (now, before))
        return -self.settings["discrimination_weight"] * (current.log().mean() + (1 - previous).log().mean()) / 2

    def self_training(self, logits: Tensor, taught: Tensor) -> Tensor:
        predicted, label = logits.softmax(1), taught.softmax(1)
        each = -(label * predicted.log()).sum(1)
        if self.settings["symmetric"]:
            each = (each - (predicted * label.log()).sum(1)) / 2
        return each.mean()

    def networks(self) -> nn.ModuleDict:
        names = ("model", "teacher", "amplifier", "teacher_amplifier", "extractor", "discriminator")
        return nn.ModuleDict({name: part for name in names if (part := getattr(self, name, None)) is not None})


def gradients(loss: Tensor, *optimizers: torch.optim.Optimizer) -> None:
    """Give gradients to what the optimisers train and to nothing else."""
    groups = [p for optimizer in optimizers for group in optimizer.param_groups for p in group["params"]]
    found = torch.autograd.grad(loss, groups, allow_unused=True, retain_graph=True)
    for parameter, gradient in zip(groups, found, strict=True):
        parameter.grad = gradient


def descend(loss: Tensor, *optimizers: torch.optim.Optimizer) -> None:
    gradients(loss, *optimizers)
    for optimizer in optimizers:
        optimizer.step()
        optimizer.zero_grad()


class AsWritten(Reference):
    """The paper: embeddings by encoder, amplifier and extractor; predictions by encoder and head."""

    def batch(self, images: Tensor) -> Tensor:
        s = self.settings
        with torch.no_grad():
            taught, own = self.teacher(images).logits, self.model(images).logits
        prediction = taught if s["predict"] == "teacher" else own
        self.notice(float(prediction.softmax(1).max(1).values.mean()))
        for optimizer, rate in ((self.encoder, "learning_rate"), (self.waves, "amplifier_learning_rate")):
            for group in optimizer.param_groups:
                group["lr"] = s[rate] * min(1.0, (self.number + 1) / max(1, s["early"]))

        if s["discrimination"] or s["invariance"]:
            self.learn_both(images, taught)
        elif s["self_training"]:
            descend(self.self_training(self.model(images).logits, taught), self.encoder)
        average(self.teacher, self.model, s["momentum"])
        self.number += 1
        return prediction

    def learn_both(self, images: Tensor, taught: Tensor) -> None:
        """Step 1, step 2, and prototypes and queue after them."""
        s, view = self.settings, None
        if self.prototypes is None:
            with torch.no_grad():
                view = self.amplified(Augmentation(1.0)(images, self.generator), self.model, self.amplifier)[1]
        before = self.embeddings(images)
        if s["discrimination"]:
            descend(self.discrimination(before, self.previous(view)), self.domain, self.waves)
        loss = torch.zeros(())
        if s["invariance"]:
            now, previous = self.embeddings(images), self.previous(view)
            order = torch.rand(len(previous), generator=self.generator).argsort()
            pairs = [(now[i], previous[order[i % len(previous)]]) for i in range(len(images))]
            loss = s["invariance_weight"] * torch.stack([(f - p).abs().mean() for f, p in pairs]).mean()
        if s["self_training"]:
            loss = loss + self.self_training(self.model(images).logits, taught)
        if loss.requires_grad:
            descend(loss, self.encoder)
        with torch.no_grad():
            after = self.embeddings(images)
        if s["prototype_update"]:
            self.follow(before.detach(), after)
        self.push(after)

    def notice(self, confidence: float) -> None:
        last = self.confidences[-1:] or [confidence]
        self.confidences.append(confidence)
        self.changes.append(abs(confidence - last[0]) > self.settings["threshold"])
        if self.changes[-1]:
            self.begin_domain()

    def embeddings(self, images: Tensor) -> Tensor:
        return self.extractor(self.amplified(images, self.model, self.amplifier)[1])  # type: ignore[no-any-return]

    def previous(self, view: Tensor | None) -> Tensor:
        if self.prototypes is not None:
            return self.prototypes
        with torch.no_grad():
            return self.extractor(view)  # type: ignore[no-any-return]

    def chamfer(self, one: Tensor, other: Tensor) -> Tensor:
        distances = torch.stack([torch.stack([(a - b).square().sum() for b in other]) for a in one])
        return distances.min(0).values.sum() + distances.min(1).values.sum()

    def follow(self, before: Tensor, after: Tensor) -> None:
        if self.prototypes is None:
            return
        target, moving = self.chamfer(before, self.prototypes), self.prototypes.clone().requires_grad_(True)
        optimizer = torch.optim.Adam([moving], self.settings["prototype_learning_rate"], foreach=False)
        for _ in range(self.settings["prototype_steps"]):
            start = moving.detach().clone()
            loss = (target - self.chamfer(after, moving)).abs()
            descend(loss, optimizer)
            if not bool((target - self.chamfer(after, moving.detach())).abs() < loss):
                moving.data.copy_(start)  # ours: a step that widens the gap is left out
        self.prototypes = moving.detach()


class AsReleased(Reference):
    """The released code for `released_for`: the amplifier takes part everywhere, and the teacher has its own."""

    def __init__(self, adapter: TestDG, settings: dict[str, Any]) -> None:
        super().__init__(adapter, settings)
        self.program = settings["released_for"]
        self.teacher_amplifier = copy.deepcopy(adapter.get_submodule("teacher_amplifier")).requires_grad_(True)
        self.source = [p.detach().clone() for p in self.model.parameters()]
        self.due = False

    def batch(self, images: Tensor) -> Tensor:
        s = self.settings
        with torch.no_grad():
            taught = self.amplified(images, self.teacher, self.teacher_amplifier)[0]
        if self.due:
            self.begin_domain()
        self.notice(float(taught.softmax(1).max(1).values.mean()))
        view = None
        if self.prototypes is None:
            with torch.no_grad():
                augmented = Augmentation(1.0)(images, self.generator)
                view = self.amplified(augmented, self.teacher, self.teacher_amplifier)[0]

        # Step 1
        logits = self.amplified(images, self.model, self.amplifier)[0]
        before = self.extractor(logits)
        self.push(before)
        reference = self.extractor(view) if self.prototypes is None else self.prototypes  # with gradient
        loss = self.self_training(logits, taught) + self.discrimination(before, reference)
        gradients(loss, self.domain, self.waves)
        self.domain.step()
        if self.program != "cifar100-c":
            self.waves.step()
        between = self.extractor(self.amplified(images, self.model, self.amplifier)[0])
        self.renew(before, between)

        # Step 2
        logits = self.amplified(images, self.model, self.amplifier)[0]
        now, loss = self.extractor(logits), self.self_training(logits, taught)
        if self.number % 50 < 20:
            start = before
        else:
            start, reference = now, self.extractor(view) if self.prototypes is None else self.prototypes
            rows = [reference[i % len(reference)] for i in range(len(images))]
            loss = loss + s["invariance_weight"] * F.l1_loss(now, torch.stack(rows))
        gradients(loss, self.encoder)
        self.encoder.step()
        after = now
        if self.program == "cifar100-c":
            self.waves.step()
        else:
            after = self.extractor(self.amplified(images, self.model, self.amplifier)[0])
        self.renew(start, after)

        average(self.teacher, self.model, s["momentum"])
        average(self.teacher_amplifier, self.amplifier, s["amplifier_momentum"])
        if self.program != "imagenet-c":
            for parameter, value in zip(self.model.parameters(), self.source, strict=True):
                back = torch.rand(parameter.shape, generator=self.generator) < 0.1
                parameter.data[back] = value[back]
        self.number += 1
        return taught

    def notice(self, confidence: float) -> None:
        self.changes.append(self.due)
        past = self.confidences[-2:]
        self.due = len(past) == 2 and max(abs(confidence - c) for c in past) > self.settings["threshold"]
        self.confidences.append(confidence)

    def renew(self, before: Tensor, after: Tensor) -> None:
        """Noise in the place of the prototypes, and one step of a new Adam at a time."""
        if self.prototypes is None:
            return
        with torch.no_grad():
            target = self.distance(before, self.prototypes)
        moving = torch.randn(self.prototypes.shape, generator=self.generator).requires_grad_(True)
        for _ in range(self.settings["prototype_steps"]):
            optimizer = torch.optim.Adam([moving], self.settings["prototype_learning_rate"], foreach=False)
            descend((target - self.distance(after.detach(), moving)).abs(), optimizer)
        self.prototypes = moving.detach()

    def distance(self, one: Tensor, other: Tensor) -> Tensor:
        distances = torch.stack([torch.stack([(a - b).norm() for b in other]) for a in one])
        return distances.min(0).values.mean() + distances.min(1).values.mean()
