"""The teacher is the moving average that it says it is."""

import pytest
import torch
from torch import nn

from testdg.core.weights import ema_update, frozen_copy
from testdg.models import TinyCNN


def stirred(seed: int) -> TinyCNN:
    """A network whose weights and statistics are all drawn from a seed."""
    torch.manual_seed(seed)
    network = TinyCNN(width=4)
    with torch.no_grad():
        for tensor in [*network.parameters(), *network.buffers()]:
            if tensor.is_floating_point():
                tensor.normal_()
            else:
                tensor.fill_(seed + 5)
    return network


@pytest.mark.parametrize("momentum", [0.0, 0.3, 0.9, 0.999, 1.0])
def test_average_of_weights_and_statistics(momentum: float) -> None:
    average, network = stirred(0), stirred(1)
    before = {name: value.clone() for name, value in average.state_dict().items()}
    now = {name: value.clone() for name, value in network.state_dict().items()}
    ema_update(average, network, momentum)
    counters = 0
    for name, value in average.state_dict().items():
        if value.is_floating_point():
            expected = momentum * before[name].double() + (1 - momentum) * now[name].double()
            torch.testing.assert_close(value.double(), expected, rtol=1e-5, atol=1e-6)
        else:
            counters += 1
            assert torch.equal(value, now[name])
    assert counters == 3
    assert all(torch.equal(value, now[name]) for name, value in network.state_dict().items())


def test_the_ends_are_exact() -> None:
    average, network = stirred(0), stirred(1)
    ema_update(average, network, 1.0)
    assert all(torch.equal(a, b) for a, b in zip(average.parameters(), stirred(0).parameters(), strict=True))
    ema_update(average, network, 0.0)
    assert all(torch.equal(a, b) for a, b in zip(average.parameters(), network.parameters(), strict=True))
    ema_update(average, network, 0.7)
    assert all(torch.equal(a, b) for a, b in zip(average.parameters(), network.parameters(), strict=True))


def test_a_frozen_copy_is_a_copy_and_frozen() -> None:
    network = stirred(0).train()
    copy = frozen_copy(network)
    assert not copy.training
    assert not any(p.requires_grad for p in copy.parameters())
    assert network.training
    assert all(p.requires_grad for p in network.parameters())
    with torch.no_grad():
        copy.head.weight.zero_()
    assert float(network.head.weight.detach().abs().max()) > 0
    assert isinstance(copy.head, nn.Linear)
