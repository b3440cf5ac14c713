"""Batches of TestDG, against the same batches written out in plain torch: the paper, and what its code does."""

import copy
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call

from testdg.data.augmentation import Augmentation
from testdg.methods.testdg import TestDG
from testdg.models import VisionModel
from testdg.testing import stream

SETTINGS: dict[str, Any] = {
    "queue_length": 20, "prototypes": 6, "gamma": 0.7, "rank": 4,
    "discrimination_weight": 0.7, "invariance_weight": 0.6,
    "momentum": 0.9, "amplifier_momentum": 0.8, "optimizer": "sgd",
    "learning_rate": 2e-3, "amplifier_learning_rate": 3e-3, "extractor_learning_rate": 1e-3,
    "prototype_learning_rate": 0.01, "prototype_steps": 3,
}  # fmt: skip


class Reference:
    """Copies of the networks of an adapter before its first batch, and all that happens to them in a batch."""

    def __init__(self, adapter: TestDG, settings: dict[str, Any]) -> None:
        self.settings, self.released = settings, settings["as_released"]
        for name in ("model", "teacher", "amplifier", "teacher_amplifier", "extractor", "discriminator"):
            setattr(self, name, copy.deepcopy(getattr(adapter, name)).requires_grad_(True))
        self.source = copy.deepcopy((self.model, self.amplifier))
        self.generator = torch.Generator()
        self.generator.set_state(adapter.generator.get_state())
        self.number = 0
        self.queue: list[Tensor] = []
        self.prototypes: Tensor | None = None
        self.confidences: list[float] = []
        self.jumps: list[bool] = []
        self.changes: list[bool] = []
        domain = [*self.extractor.parameters(), *self.discriminator.parameters()]
        nesterov: dict[str, Any] = {"momentum": 0.9, "nesterov": True, "foreach": False}
        self.domain = torch.optim.Adam(domain, settings["extractor_learning_rate"], foreach=False)
        self.waves = torch.optim.SGD(self.amplifier.parameters(), settings["amplifier_learning_rate"], **nesterov)
        self.encoder = torch.optim.SGD(self.model.parameters(), settings["learning_rate"], **nesterov)

    def batch(self, images: Tensor) -> Tensor:
        s = self.settings
        with torch.no_grad():
            taught = self.run(self.teacher, self.teacher_amplifier, images)[0]
            own = self.run(self.model, self.amplifier, images)[0]
        prediction = taught if self.released else own
        self.notice(float(prediction.softmax(1).max(1).values.mean()))

        view = None
        if self.prototypes is None:
            with torch.no_grad():
                view = self.run(self.teacher, self.teacher_amplifier, Augmentation(1.0)(images, self.generator))

        # Step 1
        passed = self.run(self.model, self.amplifier, images)
        before = self.embedding(passed)
        now, old = (self.discriminator(f).sigmoid().flatten() for f in (before, self.previous(view)))
        loss = -s["discrimination_weight"] * (now.log().mean() + (1 - old).log().mean()) / 2
        if self.released:
            loss = loss + self.self_training(passed[0], taught)
        self.descend(loss, self.domain, self.waves)

        # Step 2
        passed = self.run(self.model, self.amplifier, images)
        between = self.embedding(passed)
        if self.released:
            self.follow(before.detach(), between.detach())
        loss = self.self_training(passed[0], taught)
        if not self.released or self.number % 50 >= 20:
            previous = self.previous(view)
            order = torch.rand(len(previous), generator=self.generator).argsort()
            pairs = [(between[i], previous[order[i % len(previous)]]) for i in range(len(images))]
            gap = sum((f - p).abs().sum() for f, p in pairs) / len(pairs)
            loss = loss + s["invariance_weight"] / between.shape[1] * gap
        self.descend(loss, self.encoder)

        with torch.no_grad():
            after = self.embedding(self.run(self.model, self.amplifier, images))
        self.follow((between if self.released else before).detach(), after)
        self.queue = [*self.queue, *after][-s["queue_length"] :]
        self.average(self.teacher, self.model, s["momentum"])
        self.average(self.teacher_amplifier, self.amplifier, s["amplifier_momentum"])
        if self.released:
            for mine, source in zip((self.model, self.amplifier), self.source, strict=True):
                for parameter, value in zip(mine.parameters(), source.parameters(), strict=True):
                    back = torch.rand(parameter.shape, generator=self.generator) < 0.1
                    parameter.data[back] = value.data[back]
        self.number += 1
        return prediction

    # Domain changes and prototypes

    def notice(self, confidence: float) -> None:
        past = self.confidences[-2:] if self.released else self.confidences[-1:]
        gaps = [abs(confidence - value) for value in past]
        self.confidences.append(confidence)
        self.jumps.append(max(gaps, default=0.0) > self.settings["threshold"])
        self.changes.append(self.jumps[-2:-1] == [True] if self.released else self.jumps[-1])
        if self.changes[-1] and self.queue:
            self.prototypes = torch.stack([self.queue[i] for i in self.selected()])
            self.queue = []

    def selected(self) -> list[int]:
        """Greedy maximisation of J, each candidate scored from scratch."""
        kernel = (-self.settings["gamma"] * torch.cdist(x := torch.stack(self.queue).double(), x) ** 2).exp()
        chosen: list[int] = []
        while len(chosen) < min(self.settings["prototypes"], len(self.queue)):
            rest = [i for i in range(len(self.queue)) if i not in chosen]
            scores = []
            for i in rest:
                some = [*chosen, i]
                scores.append(float(2 * kernel[:, some].mean() - kernel[some][:, some].mean()))
            chosen.append(rest[scores.index(max(scores))])
        return chosen

    def previous(self, view: tuple[Tensor, Tensor] | None) -> Tensor:
        if self.prototypes is not None:
            return self.prototypes
        assert view is not None
        return self.embedding(view).detach()

    def chamfer(self, one: Tensor, other: Tensor) -> Tensor:
        distances = torch.stack([torch.stack([(a - b).square().sum() for b in other]) for a in one])
        if self.released:
            distances = distances.sqrt()
            return distances.min(0).values.mean() + distances.min(1).values.mean()
        return distances.min(0).values.sum() + distances.min(1).values.sum()

    def follow(self, before: Tensor, after: Tensor) -> None:
        if self.prototypes is None:
            return
        s, previous = self.settings, self.prototypes
        wanted = self.chamfer(before, previous)
        moving = torch.randn(previous.shape, generator=self.generator) if self.released else previous.clone()
        moving.requires_grad_(True)
        optimizer = torch.optim.Adam([moving], s["prototype_learning_rate"], foreach=False)
        for _ in range(s["prototype_steps"]):
            kept = moving.detach().clone()
            loss = (wanted - self.chamfer(after, moving)).abs()
            self.descend(loss, optimizer)
            if self.released:
                optimizer = torch.optim.Adam([moving], s["prototype_learning_rate"], foreach=False)
            elif not bool((wanted - self.chamfer(after, moving.detach())).abs() < loss):
                moving.data.copy_(kept)  # ours: a step that widens the gap is left out
        self.prototypes = moving.detach()

    # Networks

    def run(self, model: Any, amplifier: Any, images: Tensor) -> tuple[Tensor, Tensor]:
        logits, features = functional_call(model, amplifier.merged(model), (images,))
        return logits, features

    def embedding(self, passed: tuple[Tensor, Tensor]) -> Tensor:
        return self.extractor(passed[0] if self.released else passed[1])  # type: ignore[no-any-return]

    def self_training(self, logits: Tensor, taught: Tensor) -> Tensor:
        predicted, label = logits.softmax(1), taught.softmax(1)
        each = -(label * predicted.log()).sum(1)
        if self.settings["symmetric"]:
            each = (each - (predicted * label.log()).sum(1)) / 2
        return each.mean()

    def descend(self, loss: Tensor, *optimizers: torch.optim.Optimizer) -> None:
        """Move what the optimisers hold and nothing else."""
        for optimizer in optimizers:
            optimizer.zero_grad()
        groups = [p for optimizer in optimizers for group in optimizer.param_groups for p in group["params"]]
        gradients = torch.autograd.grad(loss, groups, allow_unused=True)
        for parameter, gradient in zip(groups, gradients, strict=True):
            parameter.grad = gradient
        for optimizer in optimizers:
            optimizer.step()

    @staticmethod
    @torch.no_grad()
    def average(average: Any, module: Any, momentum: float) -> None:
        for mine, other in zip(average.parameters(), module.parameters(), strict=True):
            mine.copy_(momentum * mine + (1 - momentum) * other)

    def networks(self) -> nn.ModuleDict:
        names = ("model", "teacher", "amplifier", "teacher_amplifier", "extractor", "discriminator")
        return nn.ModuleDict({name: getattr(self, name) for name in names})


def stirred(model: VisionModel, settings: dict[str, Any]) -> TestDG:
    """An adapter whose amplifier is not zero and whose teacher is not its student, before its first batch."""
    adapter = TestDG(model, **settings)
    generator = torch.Generator().manual_seed(1)
    assert adapter.amplifier is not None
    assert adapter.teacher_amplifier is not None
    with torch.no_grad():
        for part in (adapter.amplifier, adapter.teacher_amplifier, adapter.teacher):
            for parameter in part.parameters():
                parameter += 0.02 * torch.randn(parameter.shape, generator=generator)
        if adapter.source_amplifier is not None:
            adapter.source_amplifier.load_state_dict(adapter.amplifier.state_dict())
    return adapter


def jump(adapter: TestDG, batches: list[Tensor]) -> float:
    """A threshold that some steps of the confidence exceed."""
    values = []
    for images in batches:
        adapter(images)
        values.append(float(adapter.diagnostics["confidence"]))
    steps = sorted(abs(a - b) for a, b in pairwise(values))
    return (steps[-2] + steps[-3]) / 2


@pytest.mark.parametrize("symmetric", [False, True])
@pytest.mark.parametrize("start", [0, 20])
@pytest.mark.parametrize("released", [False, True], ids=["text", "released"])
@pytest.mark.parametrize("kind", ["vit", "cnn"])
def test_batches_are_what_the_paper_says_and_what_its_code_does(
    kind: str, released: bool, start: int, symmetric: bool, request: pytest.FixtureRequest
) -> None:
    """`start` is the number of the first batch: the code pauses L_inv in the first 20."""
    model: VisionModel = request.getfixturevalue(kind)
    settings = {**SETTINGS, "as_released": released, "symmetric": symmetric, "batch_norm": "source"}
    batches = stream(TestDG(model, **settings), 8, 8)
    settings["threshold"] = jump(stirred(model, {**settings, "threshold": 10.0}), batches)
    adapter = stirred(model, settings)
    reference = Reference(adapter, settings)
    adapter.batches = start
    reference.number = start
    before = {name: value.clone() for name, value in adapter.named_parameters()}
    changes = []
    for images in batches:
        torch.testing.assert_close(adapter(images), reference.batch(images), rtol=1e-3, atol=1e-4)
        changes.append(adapter.diagnostics["change"])
        assert ("invariance_loss" in adapter.diagnostics) == (not released or start >= 20)
    assert changes == reference.changes
    assert set(changes[1:]) == {True, False}
    expected = dict(reference.networks().named_parameters())
    now = {name: value for name, value in adapter.named_parameters() if name in expected}
    assert now.keys() == expected.keys()
    for name, value in now.items():
        learnt, difference = ((value - other).abs().max() for other in (before[name], expected[name].detach()))
        assert difference < 3e-2 * learnt + 1e-6, f"{name} learnt {learnt:g} and differs by {difference:g}"
    assert reference.prototypes is not None
    torch.testing.assert_close(adapter.prototypes.current, reference.prototypes, rtol=1e-2, atol=1e-3)
    torch.testing.assert_close(adapter.queue.content()[0], torch.stack(reference.queue), rtol=1e-2, atol=1e-3)
