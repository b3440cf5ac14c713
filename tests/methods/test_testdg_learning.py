"""Section 3.3: the losses of the two steps, against the formulas of the paper written out in plain Python."""

import itertools
import math
from collections import Counter
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from testdg.methods.testdg.learning import (
    discrimination_loss,
    domain_accuracy,
    domain_features,
    invariance_loss,
    mlp,
    self_training_loss,
)

Rows = list[list[float]]


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def normal(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=seeded(seed), dtype=torch.float64)


def softmax(row: list[float]) -> list[float]:
    powers = [math.exp(value) for value in row]
    return [power / sum(powers) for power in powers]


def numeric_gradient(function: Callable[[Tensor], Tensor], at: Tensor, step: float = 1e-6) -> Tensor:
    """Central differences."""
    gradient = torch.zeros_like(at)
    for index in itertools.product(*map(range, at.shape)):
        up, down = at.clone(), at.clone()
        up[index] += step
        down[index] -= step
        gradient[index] = (function(up) - function(down)) / (2 * step)
    return gradient


def exact_gradient(function: Callable[[Tensor], Tensor], at: Tensor) -> Tensor:
    at = at.clone().requires_grad_(True)
    (gradient,) = torch.autograd.grad(function(at), at)
    return gradient


# L_self


def literal_self_training(student: Rows, teacher: Rows) -> float:
    """Equation 4, mean over the images."""
    total = 0.0
    for logits, taught in zip(student, teacher, strict=True):
        predicted, label = softmax(logits), softmax(taught)
        total -= sum(t * math.log(y) for t, y in zip(label, predicted, strict=True)) / len(logits)
    return total / len(student)


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 2**31), images=st.integers(1, 5), classes=st.integers(2, 6))
def test_self_training_is_the_formula_without_its_division_by_the_classes(seed: int, images: int, classes: int) -> None:
    student, teacher = normal(seed, images, classes), normal(seed + 1, images, classes)
    expected = classes * literal_self_training(student.tolist(), teacher.tolist())
    assert float(self_training_loss(student, teacher)) == pytest.approx(expected, rel=1e-5)


def test_symmetric_self_training_is_the_mean_of_both_ways() -> None:
    student, teacher = normal(0, 4, 5), normal(1, 4, 5)
    one, other = self_training_loss(student, teacher), self_training_loss(teacher, student)
    both = self_training_loss(student, teacher, symmetric=True)
    assert float(both) == pytest.approx(float(one + other) / 2, rel=1e-5)


def test_self_training_pulls_the_prediction_to_the_label() -> None:
    student, teacher = normal(0, 3, 4).float(), normal(1, 3, 4).float()
    gradient = exact_gradient(lambda s: self_training_loss(s, teacher), student)
    torch.testing.assert_close(gradient, (student.softmax(1) - teacher.softmax(1)) / 3)
    same = exact_gradient(lambda s: self_training_loss(s, student), student)
    torch.testing.assert_close(same, torch.zeros_like(same))
    signal = exact_gradient(lambda s: self_training_loss(s, student, symmetric=True), student)
    assert signal.abs().max() > 0.01


# L_dis


def literal_discrimination(current: list[float], previous: list[float]) -> float:
    """Equation 5 with the probabilities of the discriminator."""
    first = sum(math.log(d) for d in current) / len(current)
    return -(first + sum(math.log(1 - d) for d in previous) / len(previous))


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 2**31), images=st.integers(1, 6), prototypes=st.integers(1, 6))
def test_discrimination_is_half_the_formula(seed: int, images: int, prototypes: int) -> None:
    current, previous = normal(seed, images, 1), normal(seed + 1, prototypes, 1)
    given_ = current.sigmoid().flatten().tolist(), previous.sigmoid().flatten().tolist()
    assert float(discrimination_loss(current, previous)) == pytest.approx(literal_discrimination(*given_) / 2)


def test_gradient_of_discrimination_through_the_discriminator() -> None:
    network = mlp([4, 8, 1], nn.GELU, seeded()).double()
    current, previous = normal(0, 5, 4), normal(1, 3, 4)

    def of_current(x: Tensor) -> Tensor:
        return discrimination_loss(network(x), network(previous))

    def of_previous(x: Tensor) -> Tensor:
        return discrimination_loss(network(current), network(x))

    for function, at in ((of_current, current), (of_previous, previous)):
        expected = numeric_gradient(function, at)
        torch.testing.assert_close(exact_gradient(function, at), expected, rtol=1e-6, atol=1e-9)


def test_domain_accuracy_weighs_the_sets_alike() -> None:
    right, wrong = torch.ones(3, 1), -torch.ones(1, 1)
    assert float(domain_accuracy(right, wrong)) == 1
    assert float(domain_accuracy(torch.cat([right, wrong]), wrong)) == pytest.approx((0.75 + 1) / 2)
    assert float(domain_accuracy(torch.ones(30, 1), torch.ones(1, 1))) == 0.5


# L_inv


def literal_invariance(current: Rows, prototypes: Rows, order: tuple[int, ...]) -> float:
    """Equation 6 for pairs (f_i, p_order[i]), divided by the width; prototypes go round when they are few."""
    total = 0.0
    for i, embedding in enumerate(current):
        prototype = prototypes[order[i % len(order)]]
        total += sum(abs(f - p) for f, p in zip(embedding, prototype, strict=True))
    return total / len(current) / len(current[0])


@pytest.mark.parametrize(("images", "prototypes"), [(4, 4), (6, 3), (5, 3), (2, 4), (1, 3)])
def test_invariance_is_the_formula_for_a_random_order_of_the_prototypes(images: int, prototypes: int) -> None:
    f, p = normal(0, images, 3), normal(1, prototypes, 3)
    orders = list(itertools.permutations(range(prototypes)))
    values = [literal_invariance(f.tolist(), p.tolist(), order) for order in orders]
    counts: Counter[float] = Counter()
    for seed in range(600):
        loss = float(invariance_loss(f, p, seeded(seed)))
        nearest = min(values, key=lambda value: abs(value - loss))
        assert loss == pytest.approx(nearest, rel=1e-12)
        counts[round(nearest, 9)] += 1
    distinct = Counter(round(value, 9) for value in values)
    for value, orders_with_it in distinct.items():
        share = orders_with_it / len(orders)
        assert abs(counts[value] - 600 * share) < 4.5 * (600 * share * (1 - share)) ** 0.5


@pytest.mark.parametrize(("images", "prototypes"), [(4, 4), (6, 3), (3, 5)])
def test_gradient_of_invariance(images: int, prototypes: int) -> None:
    f, p = normal(0, images, 3), normal(1, prototypes, 3)

    def function(x: Tensor) -> Tensor:
        return invariance_loss(x, p, seeded(7))

    gradient = exact_gradient(function, f)
    torch.testing.assert_close(gradient, numeric_gradient(function, f), rtol=1e-6, atol=1e-8)
    torch.testing.assert_close(gradient.abs(), torch.full_like(gradient, 1 / gradient.numel()))


# Parts


def test_features_of_maps_are_means_of_cells() -> None:
    maps = torch.arange(2 * 3 * 4 * 4.0).view(2, 3, 4, 4)
    cells = domain_features(maps, 2)
    assert cells.shape == (2 * 4, 3)
    torch.testing.assert_close(cells[5], maps[1, :, :2, 2:].mean((1, 2)))
    torch.testing.assert_close(domain_features(maps), maps.mean((2, 3)))
    vectors = torch.rand(2, 3)
    assert torch.equal(domain_features(vectors, 4), vectors)


def test_networks_are_drawn_from_the_given_generator() -> None:
    torch.manual_seed(0)
    one = mlp([6, 8, 4], nn.ReLU, seeded(3))
    torch.manual_seed(1)
    again, other = mlp([6, 8, 4], nn.ReLU, seeded(3)), mlp([6, 8, 4], nn.ReLU, seeded(4))
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), again.parameters(), strict=True))
    assert not torch.equal(next(one.parameters()), next(other.parameters()))
    assert one(torch.rand(5, 6)).shape == (5, 4)


def test_layers_have_an_activation_between_them_and_none_at_the_end() -> None:
    network = mlp([4, 16, 8, 1], nn.ReLU, seeded())
    kinds = [nn.Linear, nn.ReLU, nn.Linear, nn.ReLU, nn.Linear]
    assert [type(layer) for layer in network] == kinds
    assert [layer.weight.shape for layer in network if isinstance(layer, nn.Linear)] == [(16, 4), (8, 16), (1, 8)]
