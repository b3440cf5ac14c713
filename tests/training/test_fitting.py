import math
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn

from testdg.core.fitting import fit, rate


def batches(start: int, steps: int) -> Iterator[tuple[Tensor, Tensor]]:
    for number in range(start, steps):
        generator = torch.Generator().manual_seed(number)
        images = torch.rand(4, 3, generator=generator)
        yield images, images.sum(1, keepdim=True)


def make() -> tuple[nn.Linear, torch.optim.Optimizer]:
    torch.manual_seed(0)
    network = nn.Linear(3, 1)
    return network, torch.optim.AdamW(network.parameters(), 0.1)


def test_any_loss_is_minimised() -> None:
    network, optimizer = make()
    losses: list[float] = []
    fit(
        lambda images, labels: (network(images) - labels).abs().mean(),
        optimizer,
        batches(0, 100),
        steps=100,
        after=lambda done, loss: losses.append(float(loss)),
    )
    assert len(losses) == 100
    assert losses[-1] < 0.1 * losses[0]


def test_the_learning_rate_warms_up_and_falls_to_nothing() -> None:
    rates = [rate(step, 100) for step in range(100)]
    assert rates[0] == pytest.approx(0.1)
    assert max(rates) == rates[9] == pytest.approx((1 + math.cos(0.09 * math.pi)) / 2)
    assert rates[10:] == sorted(rates[10:], reverse=True)
    assert rates[-1] < 0.001
    network, optimizer = make()
    seen: list[float] = []
    fit(lambda images, _: network(images).mean(), optimizer, batches(0, 5), steps=5,
        after=lambda done, loss: seen.append(optimizer.param_groups[0]["lr"]))  # fmt: skip
    assert seen == pytest.approx([0.1 * rate(step, 5) for step in range(5)])


def test_the_gradient_is_clipped() -> None:
    network = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(network.parameters(), 1.0)
    before = torch.cat([p.detach().flatten().clone() for p in network.parameters()])
    fit(lambda images, _: 1000 * network(images).mean(), optimizer, batches(0, 1), steps=1, clip=0.5)
    moved = torch.cat([p.detach().flatten() for p in network.parameters()]) - before
    assert moved.norm() == pytest.approx(0.5 * rate(0, 1), rel=1e-4)
