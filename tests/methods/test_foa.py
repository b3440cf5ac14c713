"""FOA: the evolution, the fitness, prompts in the input and the shift of the features."""

from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor

from support.networks import hugging_face
from testdg.methods.foa import (
    FOA,
    Evolution,
    TokenOutput,
    default_population,
    fitness,
    recombination_weights,
    see_class_tokens,
)
from testdg.methods.parts.blocks import class_tokens
from testdg.methods.parts.prompted import draw_prompts, moments, prompted
from testdg.models import TinyViT, VisionModel
from testdg.testing import stream


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


# The evolution


@pytest.mark.parametrize(("size", "population"), [(10, 10), (768, 23), (2304, 27), (3840, 28)])
def test_the_population_is_the_worked_number(size: int, population: int) -> None:
    assert default_population(size) == population


def test_weights_are_the_worked_numbers() -> None:
    weights = recombination_weights(27)
    assert len(weights) == 13
    assert weights[:3].tolist() == pytest.approx([0.224494, 0.165531, 0.131039], abs=1e-6)
    assert Evolution(4, 27).effective == pytest.approx(7.824763, abs=1e-6)


def sphere(points: Tensor) -> Tensor:
    return (points - 3).square().sum(1)


def ellipsoid(points: Tensor) -> Tensor:
    """A turned ellipsoid whose axes are a thousand times as long as others."""
    size = points.shape[1]
    turned = (points - 1) @ torch.linalg.qr(torch.randn(size, size, generator=generator(5)))[0]
    return (turned.square() * 10 ** (6 * torch.arange(size) / (size - 1))).sum(1)


@pytest.mark.parametrize(("landscape", "size", "generations"), [(sphere, 20, 250), (ellipsoid, 8, 600)])
def test_it_finds_the_lowest_point(landscape: Any, size: int, generations: int) -> None:
    evolution, draws = Evolution(size), generator()
    for _ in range(generations):
        candidates = evolution.ask(draws)
        evolution.tell(candidates, landscape(candidates))
    assert float(landscape(evolution.mean[None])) < 1e-6


def test_a_stranger_is_shortened_and_may_win() -> None:
    evolution = Evolution(4, 6)
    candidates = torch.cat([evolution.ask(generator()), torch.full((1, 4), 100.0)])
    evolution.tell(candidates, -candidates.sum(1))
    weights = recombination_weights(6).float()
    order = (-candidates.sum(1)).argsort()
    assert int(order[0]) == 6
    expected = weights[0] * torch.ones(4) + weights[1:] @ candidates[order[1:3]]  # of length 2 = sqrt 4
    torch.testing.assert_close(evolution.mean, expected)


def test_the_first_two_lie_along_the_last_move() -> None:
    evolution, draws = Evolution(6), generator()
    candidates = evolution.ask(draws)
    evolution.tell(candidates, sphere(candidates))
    ahead, behind = (evolution.ask(draws) - evolution.mean)[:2]
    torch.testing.assert_close(ahead, -behind)
    assert float(torch.cosine_similarity(ahead, evolution.move, dim=0)) == pytest.approx(1, abs=1e-5)
    far, near = Evolution(6), Evolution(6)
    for part, values in ((far, [0.0, 9.0]), (near, [9.0, 0.0])):
        part.move.fill_(1.0)
        part.tell(part.ask(generator()), torch.tensor([*values, *range(1, part.population - 1)]))
    assert float(far.sigma) > 1 > float(near.sigma)


def test_the_basis_is_that_of_the_covariance_when_it_is_its_turn() -> None:
    evolution, draws = Evolution(40), generator()
    turns = []
    for _ in range(12):
        candidates = evolution.ask(draws)
        evolution.tell(candidates, sphere(candidates))
        turns.append(evolution.waited)
        if evolution.waited == 0:
            made = evolution.basis * evolution.scales.square() @ evolution.basis.T
            torch.testing.assert_close(made, evolution.covariance, atol=1e-5, rtol=1e-4)
    assert 0 in turns
    large = Evolution(2000)
    assert 10 < large.patience < 20


# The fitness and the shift

FEATURES = torch.tensor([[1.0, 2, 0, 1], [3, 0, 2, 1]])
HEAD = torch.tensor([[1.0, 0], [0, 1], [-1, 1]])
MEAN, DEVIATION = torch.tensor([1.5, 1.5, 0.5, 0]), torch.tensor([1, 1, 1, 0.5])


def test_the_fitness_is_the_worked_number() -> None:
    seen = TokenOutput(FEATURES[:, 2:] @ HEAD.T, FEATURES[:, 2:], FEATURES)
    assert float(fitness(seen, torch.stack([MEAN, DEVIATION]), 0.4)) == pytest.approx(1.7626569, abs=1e-6)
    alone = fitness(seen, moments(FEATURES), 0.4)
    assert float(alone) == pytest.approx(1.017357 + 0.713866, abs=1e-5)  # nothing but entropies


def test_the_shift_is_the_worked_numbers(vit: VisionModel) -> None:
    adapter = FOA(vit)
    weight = vit.network.get_submodule(vit.head).get_parameter("weight")
    adapter.source[0, -32:] = torch.tensor([0.5, 0.0] * 16)
    shifts = []
    for mean in ([1.0, 1.0], [2.0, 0.0], [0.0, 0.0]):
        shifts.append(adapter._shift())
        candidates = torch.cat([adapter.evolution.ask(generator()), adapter.best.flatten()[None]])
        adapter._learn(candidates, torch.arange(len(candidates)).float(), torch.tensor(0), torch.tensor(mean * 16))
    for found, expected in zip(shifts, ([0.0, 0.0], [-0.5, -1.0], [-0.6, -0.9]), strict=True):
        torch.testing.assert_close(found, weight @ torch.tensor(expected * 16), atol=1e-5, rtol=1e-4)


def test_tokens_are_what_the_next_layer_reads(vit: VisionModel) -> None:
    network, images = vit.network, torch.rand(3, 3, 32, 32)
    assert isinstance(network, TinyViT)
    x = network.patches(vit.normalise(images)).flatten(2).mT
    x = torch.cat([network.token.expand(3, -1, -1), x], 1) + network.position
    blocks: list[Any] = list(network.blocks)
    first = blocks[0](x)
    last = network.norm(blocks[1](first)[:, 0])
    seen = see_class_tokens(vit, images)
    torch.testing.assert_close(seen.tokens, torch.cat([blocks[1].norm1(first)[:, 0], last], 1))
    torch.testing.assert_close(seen.features, last)


# Prompts


@pytest.mark.parametrize("kind", ["tiny", "hf-vit"])
def test_prompts_stand_between_class_token_and_patches(vit: VisionModel, kind: str) -> None:
    model = vit if kind == "tiny" else hugging_face(kind)
    images, own = torch.rand(2, 3, 32, 32), torch.rand(3, 32)
    entered: list[Tensor] = []
    block = model.network.get_submodule("blocks.0" if kind == "tiny" else "vit.layers.0")
    with prompted(model, own, class_tokens(model)):
        handle = block.register_forward_pre_hook(lambda _, inputs: entered.append(inputs[0]))
        logits = model(images).logits
        handle.remove()
    assert entered[0].shape == (2, 1 + 3 + 16, 32)
    torch.testing.assert_close(entered[0][1, 1:4], own)
    plain = model(images).logits
    assert not torch.allclose(logits, plain)
    with prompted(model, own[:0], class_tokens(model)):
        torch.testing.assert_close(model(images).logits, plain)


def test_prompts_begin_as_small_as_patches(vit_base: VisionModel) -> None:
    drawn = draw_prompts(vit_base, 3, generator())
    assert drawn.shape == (3, 768)
    assert 0.06 < float(drawn.abs().max()) <= 0.0625


# The method


def warm(model: VisionModel, **options: Any) -> FOA:
    adapter = FOA(model, **options)
    adapter.warm_up(stream(adapter, 2, 16, seed=1))
    return adapter


def test_the_prediction_is_that_of_the_best_candidate(vit: VisionModel) -> None:
    adapter = warm(vit)
    images = stream(adapter, 1, 16)[0]
    logits = adapter(images)  # the first has no shift
    seen = adapter._see(images, adapter.best)
    torch.testing.assert_close(logits, seen.logits)
    assert float(fitness(seen, adapter.source, 0.4)) == pytest.approx(float(adapter.diagnostics["fitness"]), rel=1e-5)


def test_later_predictions_are_those_of_shifted_features(vit: VisionModel) -> None:
    adapter = warm(vit)
    first, second = stream(adapter, 2, 16)
    adapter(first)
    gap = adapter.source[0, -32:] - adapter.usual
    logits = adapter(second)
    features = adapter._see(second, adapter.best).features
    torch.testing.assert_close(logits, vit.network.get_submodule(vit.head)(features + gap))
    assert float(gap.norm()) > 0.1


def test_it_finds_better_prompts_and_no_weight_moves(vit: VisionModel) -> None:
    adapter = warm(vit)
    before = {name: value.clone() for name, value in adapter.model.state_dict().items()}
    images = 0.3 * stream(adapter, 1, 16)[0]
    found = []
    for _ in range(30):
        adapter(images)
        found.append(float(adapter.diagnostics["fitness"]))
    assert all(later <= earlier + 1e-4 for earlier, later in pairwise(found))  # the winner stays
    assert found[-1] < found[0]
    assert all(torch.equal(value, before[name]) for name, value in adapter.model.state_dict().items())
