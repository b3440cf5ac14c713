"""TestDG as a whole: what moves when, what each switch removes, what a step costs, and the models that it runs on."""

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from testdg_cases import BASE, DOMAIN, change, copied, make, moved, parts, second_domain
from torch import Tensor, nn

from testdg.data.augmentation import Augmentation
from testdg.methods.parts.learner import Learner
from testdg.methods.testdg import TestDG
from testdg.methods.testdg.update import chamfer, update_prototypes
from testdg.models import VisionModel
from testdg.testing import same_state, snapshot, stream

# Who is frozen when


def test_step_1_alone_leaves_encoder_and_head_alone(vit: VisionModel) -> None:
    adapter = make(vit, self_training=False, invariance=False, discrimination=True)
    start = copied(adapter)
    batches = stream(adapter, 3)
    for images in batches:
        adapter(images)
    assert moved(adapter, start) == {*DOMAIN, "teacher_amplifier"}
    assert adapter.amplifier is not None
    now = zip(adapter.amplifier.state_dict().values(), start["amplifier"], strict=True)
    assert all(not torch.equal(a, b) for a, b in now)  # down as well as up, after the first step


def test_step_2_alone_leaves_everything_else_alone(vit: VisionModel) -> None:
    adapter = make(vit, discrimination=False)
    start = copied(adapter)
    for images in stream(adapter, 3):
        adapter(images)
    assert moved(adapter, start) == {"model", "teacher"}
    weights = zip(adapter.model.network.state_dict().items(), start["model"], strict=True)
    assert [name for (name, now), before in weights if torch.equal(now, before)] == []


@contextmanager
def watched(adapter: TestDG) -> Iterator[list[tuple[str, set[str]]]]:
    """Note, for each update of a learner, which parts it moved."""
    log: list[tuple[str, set[str]]] = []
    plain = Learner.step
    names = {id(adapter.domain_learner): "step 1", id(adapter.encoder_learner): "step 2"}

    def step(learner: Learner, loss: Tensor) -> None:
        before = copied(adapter)
        plain(learner, loss)
        log.append((names[id(learner)], moved(adapter, before)))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Learner, "step", step)
        yield log


@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
def test_a_batch_is_step_1_then_step_2(vit: VisionModel, optimizer: str) -> None:
    adapter, batches = second_domain(vit, optimizer=optimizer)
    before = copied(adapter)
    with watched(adapter) as log:
        adapter(next(batches))
    assert log == [("step 1", DOMAIN), ("step 2", {"model"})]
    assert moved(adapter, before) - {"prototypes"} == {*DOMAIN, "model", "teacher", "teacher_amplifier"}
    assert not any(p.requires_grad or p.grad is not None for p in adapter.parameters())


# Switches


def test_without_discrimination_extractor_discriminator_and_amplifier_stay(vit: VisionModel) -> None:
    adapter, batches = second_domain(vit, discrimination=False)
    assert "discrimination_loss" not in adapter.diagnostics
    before = copied(adapter)
    adapter(next(batches))
    assert not moved(adapter, before) & {*DOMAIN, "teacher_amplifier"}


def test_without_self_training_only_the_invariance_moves_the_model(vit: VisionModel) -> None:
    adapter, batches = second_domain(vit, self_training=False)
    assert "self_training_loss" not in adapter.diagnostics
    before = copied(adapter)
    adapter(next(batches))
    assert "model" in moved(adapter, before)
    still, batches = second_domain(vit, self_training=False, invariance_weight=0.0)
    before = copied(still)
    still(next(batches))
    assert "model" not in moved(still, before)


def test_without_invariance_the_result_is_that_of_weight_zero(vit: VisionModel) -> None:
    shared = {"view": "same", "symmetric": True, "pairing": "sorted", "reference": "prototypes"}
    off, zero, on = (
        second_domain(vit, **shared, **more)
        for more in ({"invariance": False}, {"invariance_weight": 0.0}, {"invariance_weight": 1.0})
    )
    for adapter, batches in (off, zero, on):
        for images in batches:
            adapter(images)
    assert "invariance_loss" not in off[0].diagnostics
    assert same_state(off[0], zero[0]) is None
    assert same_state(off[0], on[0]) is not None


@pytest.mark.parametrize("distance", ["chamfer", "mmd", "hausdorff"])
def test_without_the_update_prototypes_stay(vit: VisionModel, distance: str) -> None:
    """The batches are of another domain than the prototypes, so that the model moves, and prototypes follow."""
    still, batches = second_domain(vit, prototype_update=False, distance=distance)
    before = copied(still)
    for images in batches:
        still(images)
    assert "prototypes" not in moved(still, before)
    follows, batches = second_domain(vit, prototype_update=True, distance=distance, prototype_learning_rate=1e-3)
    before = copied(follows)
    for images in batches:
        follows(images)
    assert "prototypes" in moved(follows, before)


@pytest.mark.parametrize("updates", ["once", "twice"])
def test_prototypes_stay_where_they_are_when_the_model_does_not_move(vit: VisionModel, updates: str) -> None:
    rates = {"learning_rate": 0.0, "amplifier_learning_rate": 0.0, "extractor_learning_rate": 0.0}
    adapter, batches = second_domain(vit, prototype_updates=updates, **rates)
    before = copied(adapter)
    for images in batches:
        adapter(images)
        assert float(adapter.diagnostics["prototype_drift"]) == 0
    assert "prototypes" not in moved(adapter, before)


@torch.no_grad()
def embedded(adapter: TestDG, images: Tensor) -> Tensor:
    assert adapter.amplifier is not None
    return adapter.extractor(adapter.amplifier.run(adapter.model, images).features)  # type: ignore[no-any-return]


@pytest.mark.parametrize("updates", ["once", "twice"])
def test_prototypes_follow_each_move_of_the_model(vit: VisionModel, updates: str) -> None:
    settings = {"view": "same", "symmetric": True, "prototype_updates": updates, "prototype_learning_rate": 1e-3}
    adapter, batches = second_domain(vit, **settings)
    images = next(batches)
    half = make(vit, **settings, learning_rate=0.0)  # the same adapter, whose step 2 does not move the encoder
    half.load_state(*snapshot(adapter))
    prototypes, before = adapter.prototypes.current.clone(), embedded(adapter, images)
    adapter(images)
    half(images)
    between, after = embedded(half, images), embedded(adapter, images)
    assert len({float(e.sum()) for e in (before, between, after)}) == 3
    stages = [before, after] if updates == "once" else [before, between, after]
    for old, new in pairwise(stages):
        prototypes = update_prototypes(chamfer, old, new, prototypes, 1e-3, BASE["prototype_steps"])
    torch.testing.assert_close(adapter.prototypes.current, prototypes, rtol=0, atol=1e-6)
    torch.testing.assert_close(adapter.queue.content()[0][-len(images) :], after)


def test_without_an_amplifier_there_is_none(vit: VisionModel) -> None:
    adapter, batches = second_domain(vit, amplifier=False)
    assert adapter.amplifier is None
    assert adapter.teacher_amplifier is None
    assert not [name for name in adapter.trainable() if "amplifier" in name]
    before = copied(adapter)
    with watched(adapter) as log:
        adapter(next(batches))
    assert log == [("step 1", {"extractor", "discriminator"}), ("step 2", {"model"})]
    assert moved(adapter, before) >= {"extractor", "discriminator", "model", "teacher"}


def test_without_an_amplifier_a_batch_is_that_of_one_that_stays_zero(vit: VisionModel) -> None:
    """One pass then serves both steps; nothing else may change."""
    gap = {"gather": 1, "threshold": 10.0, "history": 1, "recent": 1, "significance": 0.0}
    settings = {**gap, "learning_rate": 1e-3, "extractor_learning_rate": 1e-3, "invariance_weight": 0.5}
    zero = TestDG(vit, amplifier=True, amplifier_learning_rate=0.0, **settings)
    none = TestDG(vit, amplifier=False, **settings)
    none.extractor.load_state_dict(zero.extractor.state_dict())
    none.discriminator.load_state_dict(zero.discriminator.state_dict())
    none.generator.set_state(zero.generator.get_state())
    for k, images in enumerate(stream(zero, 8)):
        for adapter in (zero, none):
            adapter.detector.threshold = 0.0 if k == 4 else 10.0
        torch.testing.assert_close(none(images), zero(images), rtol=1e-4, atol=1e-5)
    assert len(none.prototypes) == len(zero.prototypes) > 0
    torch.testing.assert_close(none.prototypes.current, zero.prototypes.current, rtol=1e-3, atol=1e-4)
    for name, value in none.model.named_parameters():
        torch.testing.assert_close(value, zero.model.get_parameter(name), rtol=1e-3, atol=1e-4)


class MeanTeacher:
    """Plain self-training with a moving average, written without the library."""

    def __init__(self, network: nn.Module, settings: dict[str, Any]) -> None:
        self.student, self.teacher, self.settings = copy.deepcopy(network), copy.deepcopy(network), settings
        rate = settings["learning_rate"]
        self.optimizer: torch.optim.Optimizer = torch.optim.Adam(self.student.parameters(), lr=rate, foreach=False)
        if settings["optimizer"] == "sgd":
            self.optimizer = torch.optim.SGD(self.student.parameters(), lr=rate, momentum=0.9, nesterov=True)

    def __call__(self, images: Tensor, view: Tensor) -> Tensor:
        with torch.no_grad():
            prediction = self.teacher((images - 0.5) / 0.5)
        label = prediction.softmax(1)
        student = self.student((view - 0.5) / 0.5)
        loss = F.cross_entropy(student, label)
        if self.settings["symmetric"]:
            loss = loss / 2 - (student.softmax(1) * label.log()).sum(1).mean() / 2
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        with torch.no_grad():
            for average, value in zip(self.teacher.parameters(), self.student.parameters(), strict=True):
                average.copy_(self.settings["momentum"] * average + (1 - self.settings["momentum"]) * value)
        return prediction


@pytest.mark.parametrize("amplifier", [True, False])
@pytest.mark.parametrize("kind", ["vit", "cnn"])
@pytest.mark.parametrize(
    "settings",
    [
        {"optimizer": "sgd", "view": "augmented", "symmetric": False, "learning_rate": 0.5},
        {"optimizer": "sgd", "view": "same", "symmetric": True, "learning_rate": 0.5},
        {"optimizer": "adam", "view": "augmented", "symmetric": True, "learning_rate": 1e-3},
    ],
    ids=["sgd-augmented", "sgd-same-symmetric", "adam-augmented-symmetric"],
)
def test_with_both_losses_off_it_is_a_plain_mean_teacher(
    kind: str, settings: dict[str, Any], amplifier: bool, request: pytest.FixtureRequest
) -> None:
    model: VisionModel = request.getfixturevalue(kind)
    adapter = make(model, discrimination=False, invariance=False, amplifier=amplifier, **settings)
    plain = MeanTeacher(model.network, {**BASE, **settings})
    generator = torch.Generator()
    generator.set_state(adapter.generator.get_state())
    batches = stream(adapter, 5)
    for images in batches:
        view = Augmentation(1.0)(images, generator) if settings["view"] == "augmented" else images
        torch.testing.assert_close(adapter(images), plain(images, view), rtol=1e-4, atol=1e-5)
    student, source = dict(plain.student.named_parameters()), dict(model.network.named_parameters())
    for name, value in adapter.model.network.named_parameters():
        learnt = float((value - source[name]).detach().abs().max())
        # Adam follows rounding noise where a gradient is zero, as that of the keys' bias
        if settings["optimizer"] == "sgd" or "qkv.bias" not in name:
            difference = float((value - student[name]).detach().abs().max())
            assert difference < 1e-2 * learnt + 1e-6, f"{name} learnt {learnt:g}, and differs by {difference:g}"
    assert learnt > 1e-4  # the last one is of the head


# The teacher


@pytest.mark.parametrize("amplifier_momentum", [None, 0.5])
def test_the_teacher_is_a_moving_average(vit: VisionModel, amplifier_momentum: float | None) -> None:
    adapter, batches = second_domain(vit, momentum=0.8, amplifier_momentum=amplifier_momentum)
    before = copied(adapter)
    adapter(next(batches))
    now = parts(adapter)
    for average, module, momentum in (
        ("teacher", "model", 0.8),
        ("teacher_amplifier", "amplifier", amplifier_momentum or 0.8),
    ):
        for old, new, found in zip(before[average], now[module], now[average], strict=True):
            expected = momentum * old.double() + (1 - momentum) * new.double()
            torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-7)


def test_the_teacher_follows_faster_in_a_new_domain(vit: VisionModel) -> None:
    adapter = make(vit, momentum=0.9, change_momentum=0.5, change_batches=2)
    batches = stream(adapter, 6, 6)

    def momentum(average: str, module: str) -> float:
        """What share of an average the batch kept, from the value that moved most."""
        old, found, new = (torch.cat([t.flatten() for t in p]) for p in (before[average], now[average], now[module]))
        place = (new - old).abs().argmax()
        return float((found - new)[place] / (old - new)[place])

    kept: dict[str, list[float]] = {"teacher": [], "teacher_amplifier": []}
    for number, images in enumerate(batches):
        before = copied(adapter)
        change(adapter, images) if number == 4 else adapter(images)
        now = parts(adapter)
        kept["teacher"].append(momentum("teacher", "model"))
        kept["teacher_amplifier"].append(momentum("teacher_amplifier", "amplifier"))
    for found in kept.values():
        assert found == pytest.approx([0.5, 0.5, 0.9, 0.9, 0.5, 0.5], abs=1e-3)


@pytest.mark.parametrize("view", ["same", "augmented"])
@pytest.mark.parametrize("predict", ["teacher", "student"])
@pytest.mark.parametrize("domains", [True, False])
def test_the_returned_prediction_is_the_one_before_the_update(
    vit: VisionModel, view: str, predict: str, domains: bool
) -> None:
    adapter, batches = second_domain(
        vit, view=view, predict=predict, symmetric=True, discrimination=domains, invariance=domains
    )
    for images in batches:
        expected = adapter.predict(images)
        module = adapter.teacher if predict == "teacher" else adapter.model
        amplifier = adapter.teacher_amplifier if predict == "teacher" else adapter.amplifier
        assert amplifier is not None
        with torch.no_grad():
            torch.testing.assert_close(expected, amplifier.run(module, images).logits)
        torch.testing.assert_close(adapter(images), expected)


def test_the_untouched_adapter_predicts_as_the_source(vit: VisionModel) -> None:
    for predict in ("teacher", "student"):
        adapter = make(vit, predict=predict)
        images = stream(adapter, 1)[0]
        with torch.no_grad():
            assert torch.equal(adapter.predict(images), vit(images).logits)
