"""The optimiser: Adam and Nesterov SGD as torch defines them, without the updates that are not finite."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from testdg.core.learner import Learner, OptimizerName, load_moments, moments
from testdg.models import TinyCNN

OPTIMIZERS: list[OptimizerName] = ["adam", "sgd"]
both = pytest.mark.parametrize("optimizer", OPTIMIZERS)


def reference(optimizer: OptimizerName, groups: list[dict[str, Any]]) -> torch.optim.Optimizer:
    """The plain implementation of torch."""
    if optimizer == "adam":
        return torch.optim.Adam(groups, foreach=False)
    return torch.optim.SGD(groups, momentum=0.9, nesterov=True, foreach=False)


def values() -> Tensor:
    return torch.linspace(-1, 2, 12).view(3, 4)


@both
def test_steps_are_those_of_torch(optimizer: OptimizerName) -> None:
    ours, theirs = TinyCNN(width=4), TinyCNN(width=4)
    theirs.load_state_dict(ours.state_dict())

    def groups(network: TinyCNN) -> list[dict[str, Any]]:
        return [{"params": network.stages.parameters(), "lr": 1e-2}, {"params": network.head.parameters(), "lr": 1e-3}]

    learner, plain = Learner(groups(ours), optimizer), reference(optimizer, groups(theirs))
    for seed in range(5):
        images = torch.rand(4, 3, 8, 8, generator=torch.Generator().manual_seed(seed))
        learner.step(ours(images).square().mean())
        plain.zero_grad()
        theirs(images).square().mean().backward()
        plain.step()
    for one, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)
    assert int(learner.skipped) == 0
    assert all(p.grad is None for p in ours.parameters())


def nan_loss(p: Tensor) -> Tensor:
    return (p * torch.nan).sum()


def infinite_loss(p: Tensor) -> Tensor:
    return p.sum() + torch.inf


def infinite_gradient(p: Tensor) -> Tensor:
    """A finite loss, zero, whose gradient is not."""
    return (0 * p).sqrt().sum()


@both
@pytest.mark.parametrize("bad", [nan_loss, infinite_loss, infinite_gradient])
@pytest.mark.parametrize("before", [0, 2])
def test_an_update_that_is_not_finite_changes_nothing(
    optimizer: OptimizerName, bad: Callable[[Tensor], Tensor], before: int
) -> None:
    p = nn.Parameter(values())
    learner = Learner([{"params": [p], "lr": 0.1}], optimizer)
    for _ in range(before):
        learner.step(p.square().sum())
    unchanged = p.detach().clone()
    stored = {name: value.clone() for name, value in moments(learner.optimizer).items()}
    learner.step(bad(p))
    assert torch.equal(p, unchanged)
    for name, value in moments(learner.optimizer).items():
        assert torch.equal(value, stored.get(name, torch.zeros_like(value))), name
    assert int(learner.skipped) == 1


@both
@pytest.mark.parametrize("place", [0, 1, 3])
def test_after_a_skipped_update_learning_goes_on_as_if_it_had_not_been(optimizer: OptimizerName, place: int) -> None:
    one, other = nn.Parameter(values()), nn.Parameter(values())
    with_bad, without = (Learner([{"params": [p], "lr": 0.1}], optimizer) for p in (one, other))
    for k in range(4):
        if k == place:
            with_bad.step(nan_loss(one))
        for p, learner in ((one, with_bad), (other, without)):
            learner.step((p - k).square().sum())
    assert torch.equal(one, other)
    assert int(with_bad.skipped) == 1


@both
def test_one_bad_parameter_holds_back_the_whole_update(optimizer: OptimizerName) -> None:
    good, bad = nn.Parameter(values()), nn.Parameter(values())
    Learner([{"params": [good, bad], "lr": 0.1}], optimizer).step(good.sum() + infinite_gradient(bad))
    assert torch.equal(good, values())


@both
def test_gradients_of_any_layout_are_read_right(optimizer: OptimizerName) -> None:
    """The gradient of a sum is one number seen many times, that of a transpose lies column by column."""
    losses: list[Callable[[Tensor], Tensor]] = [lambda p: p.sum(), lambda p: (p.T * values().view(4, 3)).sum()]
    for loss in losses:
        ours, theirs = nn.Parameter(values()), nn.Parameter(values())
        learner = Learner([{"params": [ours], "lr": 0.1}], optimizer)
        plain = reference(optimizer, [{"params": [theirs], "lr": 0.1}])
        for _ in range(3):
            learner.step(loss(ours))
            plain.zero_grad()
            loss(theirs).backward()
            plain.step()
        torch.testing.assert_close(ours, theirs)


@both
def test_a_parameter_without_a_gradient_stays_and_may_have_one_later(optimizer: OptimizerName) -> None:
    used, late = nn.Parameter(values()), nn.Parameter(values())
    learner = Learner([{"params": [used, late], "lr": 0.1}], optimizer)
    learner.step(used.square().sum())
    assert torch.equal(late, values())
    learner.step(used.square().sum() + late.square().sum())
    assert not torch.equal(late, values())


@both
def test_moments_come_back(optimizer: OptimizerName) -> None:
    one, other = nn.Parameter(values()), nn.Parameter(values())
    first, second = (Learner([{"params": [p], "lr": 0.1}], optimizer) for p in (one, other))
    for _ in range(3):
        first.step((one - 3).square().sum())
    with torch.no_grad():
        other.copy_(one)
    load_moments(second.optimizer, moments(first.optimizer))
    for p, learner in ((one, first), (other, second)):
        learner.step((p + 3).square().sum())
    assert torch.equal(one, other)
    assert not moments(first.optimizer).keys() ^ moments(second.optimizer).keys()


def test_what_ran_in_full_precision_has_gradients_in_full_precision() -> None:
    x = torch.rand(6, 4, generator=torch.Generator().manual_seed(0))

    def stepped(outer: bool) -> Tensor:
        p = nn.Parameter(values())
        learner = Learner([{"params": [p], "lr": 1.0}], "sgd")
        with torch.autocast("cpu", torch.bfloat16, enabled=outer):
            with torch.autocast("cpu", enabled=False):
                loss = (x @ p.T).square().sum()
            learner.step(loss)
        return p.detach()

    assert torch.equal(stepped(True), stepped(False))
