"""TestDG as a whole: what moves when, what each switch removes, what a step costs, and the models that it runs on."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from testdg_cases import BASE, DOMAIN, copied, make, moved, parts, second_domain, watched
from torch import Tensor, nn

from testdg.methods.testdg import TestDG
from testdg.methods.testdg.update import chamfer, update_prototypes
from testdg.models import VisionModel
from testdg.testing import stream

# Who is frozen when


def test_step_1_alone_leaves_encoder_and_head_alone(vit: VisionModel) -> None:
    adapter = make(vit, self_training=False, invariance=False, discrimination=True)
    start = copied(adapter)
    batches = stream(adapter, 3)
    for images in batches:
        adapter(images)
    assert moved(adapter, start) == DOMAIN
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


STEP_1 = [("domain_learner", {"extractor", "discriminator"}), ("amplifier_learner", {"amplifier"})]
STEP_2 = [("encoder_learner", {"model"})]


@pytest.mark.parametrize("released", [False, True])
@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
def test_a_batch_is_step_1_then_step_2(vit: VisionModel, optimizer: str, released: bool) -> None:
    adapter, batches = second_domain(vit, optimizer=optimizer, as_released=released)
    before = copied(adapter)
    with watched(adapter) as log:
        adapter(next(batches))
    assert log == [*STEP_1, *STEP_2]
    teachers = {"teacher", "teacher_amplifier"} if released else {"teacher"}
    assert moved(adapter, before) - {"prototypes"} == {*DOMAIN, "model", *teachers}
    assert not any(p.requires_grad or p.grad is not None for p in adapter.parameters())


# Switches


def test_without_discrimination_extractor_discriminator_and_amplifier_stay(vit: VisionModel) -> None:
    adapter, batches = second_domain(vit, discrimination=False)
    assert "discrimination_loss" not in adapter.diagnostics
    before = copied(adapter)
    adapter(next(batches))
    assert not moved(adapter, before) & DOMAIN


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
    off, zero, on = (
        second_domain(vit, optimizer="sgd", learning_rate=0.1, symmetric=True, **more)  # Adam magnifies rounding
        for more in ({"invariance": False}, {"invariance_weight": 0.0}, {"invariance_weight": 1.0})
    )
    for adapter, batches in (off, zero, on):
        for images in batches:
            adapter(images)
    assert "invariance_loss" not in off[0].diagnostics
    for a, b in zip(off[0].model.parameters(), zero[0].model.parameters(), strict=True):
        torch.testing.assert_close(a, b)  # pairs were drawn for nothing
    assert not torch.equal(next(off[0].model.parameters()), next(on[0].model.parameters()))


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


def test_prototypes_stay_where_they_are_when_the_model_does_not_move(vit: VisionModel) -> None:
    rates = {"learning_rate": 0.0, "amplifier_learning_rate": 0.0, "extractor_learning_rate": 0.0}
    adapter, batches = second_domain(vit, **rates)
    before = copied(adapter)
    for images in batches:
        adapter(images)
        assert float(adapter.diagnostics["prototype_drift"]) == 0
    assert "prototypes" not in moved(adapter, before)


@torch.no_grad()
def embedded(adapter: TestDG, images: Tensor) -> Tensor:
    assert adapter.amplifier is not None
    return adapter.extractor(adapter.amplifier.run(adapter.model, images).features)  # type: ignore[no-any-return]


def test_prototypes_follow_once_a_batch(vit: VisionModel) -> None:
    adapter, batches = second_domain(vit, symmetric=True, prototype_learning_rate=1e-3)
    images = next(batches)
    prototypes, before = adapter.prototypes.current.clone(), embedded(adapter, images)
    adapter(images)
    after = embedded(adapter, images)
    expected = update_prototypes(chamfer, before, after, prototypes, 1e-3, BASE["prototype_steps"])
    torch.testing.assert_close(adapter.prototypes.current, expected, rtol=0, atol=1e-6)
    torch.testing.assert_close(adapter.queue.content()[0][-len(images) :], after)


def test_without_an_amplifier_there_is_none(vit: VisionModel) -> None:
    adapter, batches = second_domain(vit, amplifier=False)
    assert adapter.amplifier is None
    assert not [name for name in adapter.trainable() if "amplifier" in name]
    before = copied(adapter)
    with watched(adapter) as log:
        adapter(next(batches))
    assert log == [STEP_1[0], *STEP_2]
    assert moved(adapter, before) >= {"extractor", "discriminator", "model", "teacher"}


def test_without_an_amplifier_a_batch_is_that_of_one_that_stays_zero(vit: VisionModel) -> None:
    """One pass then serves both steps; nothing else may change."""
    settings = {
        "threshold": 10.0,
        "optimizer": "sgd",
        "learning_rate": 1e-3,
        "extractor_learning_rate": 1e-3,
        "invariance_weight": 0.5,
    }
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

    def __call__(self, images: Tensor) -> Tensor:
        with torch.no_grad():
            label = self.teacher((images - 0.5) / 0.5).softmax(1)
        student = self.student((images - 0.5) / 0.5)
        loss = F.cross_entropy(student, label)
        if self.settings["symmetric"]:
            loss = loss / 2 - (student.softmax(1) * label.log()).sum(1).mean() / 2
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        with torch.no_grad():
            for average, value in zip(self.teacher.parameters(), self.student.parameters(), strict=True):
                average.copy_(self.settings["momentum"] * average + (1 - self.settings["momentum"]) * value)
        return student.detach()


@pytest.mark.parametrize("amplifier", [True, False])
@pytest.mark.parametrize("kind", ["vit", "cnn"])
@pytest.mark.parametrize(
    "settings",
    [
        {"optimizer": "sgd", "symmetric": False, "learning_rate": 0.5},
        {"optimizer": "sgd", "symmetric": True, "learning_rate": 0.5},
        {"optimizer": "adam", "symmetric": True, "learning_rate": 1e-3},
    ],
    ids=["sgd", "sgd-symmetric", "adam-symmetric"],
)
def test_with_both_losses_off_it_is_a_plain_mean_teacher(
    kind: str, settings: dict[str, Any], amplifier: bool, request: pytest.FixtureRequest
) -> None:
    model: VisionModel = request.getfixturevalue(kind)
    settings = {**settings, "predict": "student", "batch_norm": "source", "amplifier": amplifier}
    adapter = make(model, discrimination=False, invariance=False, **settings)
    plain = MeanTeacher(model.network, {**BASE, **settings})
    if not settings["symmetric"]:  # otherwise both begin in agreement, and nothing is learnt
        for network in (plain.teacher, adapter.teacher.network):
            with torch.no_grad():
                list(network.parameters())[-1].add_(torch.linspace(-1, 1, 10))
    batches = stream(adapter, 5)
    for images in batches:
        torch.testing.assert_close(adapter(images), plain(images), rtol=1e-4, atol=1e-5)
    student, source = dict(plain.student.named_parameters()), dict(model.network.named_parameters())
    for name, value in adapter.model.network.named_parameters():
        learnt = float((value - source[name]).detach().abs().max())
        # Adam follows rounding noise where a gradient is zero, as that of the keys' bias
        if settings["optimizer"] == "sgd" or "qkv.bias" not in name:
            difference = float((value - student[name]).detach().abs().max())
            assert difference < 1e-2 * learnt + 1e-6, f"{name} learnt {learnt:g}, and differs by {difference:g}"
    assert learnt > 1e-4  # the last one is of the head


# The teacher


def test_the_teacher_is_a_moving_average_of_encoder_and_head(vit: VisionModel) -> None:
    adapter, batches = second_domain(vit, momentum=0.8)
    assert not [name for name, _ in adapter.teacher.named_parameters() if "amplifier" in name]
    before = copied(adapter)
    adapter(next(batches))
    now = parts(adapter)
    for old, new, found in zip(before["teacher"], now["model"], now["teacher"], strict=True):
        torch.testing.assert_close(found.double(), 0.8 * old.double() + 0.2 * new.double(), rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("predict", ["student", "teacher"])
@pytest.mark.parametrize("domains", [True, False])
def test_the_returned_prediction_is_made_before_the_update_and_without_amplifier(
    vit: VisionModel, predict: str, domains: bool
) -> None:
    adapter, batches = second_domain(vit, predict=predict, symmetric=True, discrimination=domains, invariance=domains)
    for images in batches:
        expected = adapter.predict(images)
        with torch.no_grad():
            model = adapter.teacher if predict == "teacher" else adapter.model
            torch.testing.assert_close(expected, model(images).logits)
        torch.testing.assert_close(adapter(images), expected)
    other = adapter.model if predict == "teacher" else adapter.teacher
    with torch.no_grad():
        assert not torch.allclose(adapter.predict(images), other(images).logits, atol=1e-4)


def test_the_amplifier_changes_embeddings_and_no_prediction(vit: VisionModel) -> None:
    adapter = make(vit)
    images = stream(adapter, 1)[0]
    predicted, embeddings = adapter.predict(images), adapter.embed(images)
    assert adapter.amplifier is not None
    with torch.no_grad():
        for parameter in adapter.amplifier.parameters():
            parameter += 0.1
    assert torch.equal(adapter.predict(images), predicted)
    assert not torch.allclose(adapter.embed(images), embeddings, atol=1e-3)


@pytest.mark.parametrize("settings", [{"predict": "student"}, {"predict": "teacher"}, {"as_released": True}], ids=str)
def test_the_untouched_adapter_predicts_as_the_source(vit: VisionModel, settings: dict[str, Any]) -> None:
    adapter = make(vit, **settings)
    images = stream(adapter, 1)[0]
    with torch.no_grad():
        assert torch.equal(adapter.predict(images), vit(images).logits)


# Early adaptation


def test_early_rates_rise_to_full_and_survive_a_reset(vit: VisionModel) -> None:
    adapter = make(vit, early=4)
    plain = make(vit)
    first, later = [], []
    for rates in (first, later):
        for images in stream(adapter, 6):
            adapter(images)
            assert adapter.amplifier_learner is not None
            pairs = ((adapter.encoder_learner, 1e-3), (adapter.amplifier_learner, 2e-3))
            shares = {round(learner.optimizer.param_groups[0]["lr"] / rate, 9) for learner, rate in pairs}
            rates.append(shares.pop())
            assert not shares
            assert adapter.domain_learner.optimizer.param_groups[0]["lr"] == BASE["extractor_learning_rate"]
        adapter.reset()
    assert first == later == [0.25, 0.5, 0.75, 1, 1, 1]
    plain(stream(plain, 1)[0])
    assert plain.encoder_learner.optimizer.param_groups[0]["lr"] == 1e-3


def test_early_rates_continue_after_a_saved_state(vit: VisionModel, tmp_path: Path) -> None:
    adapter = make(vit, early=8, symmetric=True)
    batches = stream(adapter, 5)
    for images in batches[:3]:
        adapter(images)
    adapter.save(tmp_path)
    again = TestDG.load(tmp_path, vit)
    for images in batches[3:]:
        assert torch.equal(adapter(images), again(images))
    for one, other in zip(adapter.parameters(), again.parameters(), strict=True):
        assert torch.equal(one, other)
