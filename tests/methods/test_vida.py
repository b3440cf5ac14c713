"""ViDA: its adapters, the uncertainty that shares the work between them, and one batch by the book."""

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from support.literal import assert_close, average, same
from testdg.methods.vida import DomainAdapters, ViDA, allotment
from testdg.models import Preprocessing, VisionModel, load_model
from testdg.testing import stream

SMALL: dict[str, Any] = {"source_images": 0, "high_rank": 4, "views": 3, "views_at_once": 3}


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.proj = nn.Linear(12, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.proj(x)


def one_layer() -> VisionModel:
    torch.manual_seed(0)
    network = nn.Sequential(nn.Flatten(), Attention(), nn.Linear(5, 3))
    return load_model(network, preprocessing=Preprocessing((2, 2)))


def stir(adapter: ViDA, scale: float = 0.1) -> ViDA:
    """Adapters that are no longer nothing, the same in student and teacher."""
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for up in adapter.adapters.up.values():
            up.normal_(0, scale, generator=generator)
    adapter.teacher_adapters.load_state_dict(adapter.adapters.state_dict())
    return adapter


# The adapters


def test_both_branches_have_the_published_size_beside_vit_base(vit_base: VisionModel) -> None:
    adapters = DomainAdapters(vit_base, 1, 128, torch.Generator())
    assert sum(p.numel() for p in adapters.parameters()) == 12 * 129 * (3072 + 1536) == 7_133_184


def test_a_layer_is_the_sum_of_itself_and_two_scaled_branches() -> None:
    model = one_layer()
    adapters = DomainAdapters(model, 1, 2, torch.Generator().manual_seed(0))
    (up,), (down,) = (list(part.values()) for part in (adapters.up, adapters.down))
    with torch.no_grad():
        up.normal_(generator=torch.Generator().manual_seed(1))
    images = torch.rand(4, 3, 2, 2)
    found = adapters.run(model, images, torch.tensor([0.3, 1.7])).features
    layer = model.network[1].proj  # type: ignore[index]
    weight, bias, u, d = (t.detach().double() for t in (layer.weight, layer.bias, up[0], down[0]))
    for row, x in zip(found, images.double().flatten(1), strict=True):
        low = u[:, :1] @ (d[:1] @ x)
        high = u[:, 1:] @ (d[1:] @ x)
        torch.testing.assert_close(row.double(), weight @ x + bias + 0.3 * low + 1.7 * high, rtol=1e-5, atol=1e-5)


def test_down_projections_start_with_the_inverse_square_of_their_rank(vit: VisionModel) -> None:
    adapters = DomainAdapters(vit, 2, 8, torch.Generator().manual_seed(0))
    (down,) = adapters.down.values()
    assert float(down[:, :2].detach().std()) == pytest.approx(1 / 4, rel=0.1)
    assert float(down[:, 2:].detach().std()) == pytest.approx(1 / 64, rel=0.1)


# Uncertainty and scales


@given(st.floats(0, 3), st.floats(0, 1))
def test_the_high_rank_adapter_gets_more_exactly_where_the_teacher_is_unsure(u: float, threshold: float) -> None:
    low, high = allotment(torch.tensor(u, dtype=torch.float64), threshold).tolist()
    assert low + high == pytest.approx(2)
    assert 0 <= low <= 2
    assert high == pytest.approx(min(1 + u, 2) if u >= threshold else max(1 - u, 0))


def test_as_released_only_the_low_rank_adapter_is_scaled_and_without_bounds() -> None:
    assert allotment(torch.tensor(1.5), 0.2, True).tolist() == [-0.5, 1.0]
    assert allotment(torch.tensor(0.125), 0.2, True).tolist() == [1.125, 1.0]


@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("as_released", [False, True])
def test_an_uncertainty_that_is_not_finite_leaves_the_scales_at_one(value: float, as_released: bool) -> None:
    assert allotment(torch.tensor(value), 0.2, as_released).tolist() == [1.0, 1.0]


# One batch


def by_the_book(adapter: ViDA, images: Tensor, optimizer: torch.optim.Optimizer) -> Tensor:
    """The step as the paper's code orders it, on the parts of an adapter."""
    s = adapter.settings
    teacher = lambda x: adapter.teacher_adapters.run(adapter.teacher, x, adapter.scales).logits  # noqa: E731
    with torch.no_grad():
        views = torch.stack([teacher(adapter.augment(images, adapter.generator)) for _ in range(s.views)])
        u = float(0.1 * views.double().var(0, unbiased=True).mean())
        high = 1 + u if u >= s.threshold else 1 - u
        adapter.scales.copy_(torch.tensor([2 - high, high]))
        taught = teacher(images)
    student = adapter.adapters.run(adapter.model, images, adapter.scales).logits
    loss = -(taught.softmax(1) * student.log_softmax(1)).sum(1)
    if s.loss == "symmetric":
        loss = 0.5 * loss - 0.5 * (student.softmax(1) * taught.log_softmax(1)).sum(1)
    optimizer.zero_grad()
    loss.mean().backward()
    optimizer.step()
    average(adapter.teacher, adapter.model, s.momentum)
    average(adapter.teacher_adapters, adapter.adapters, 0.5)
    return taught


@pytest.mark.parametrize("loss", ["soft", "symmetric"])
def test_three_batches_by_the_book(vit: VisionModel, loss: str) -> None:
    settings = {**SMALL, "loss": loss, "learning_rate": 1e-3, "adapter_learning_rate": 1e-2, "adapter_momentum": 0.5}
    adapter, other = (stir(ViDA(vit, **settings, momentum=0.9, threshold=0.01)) for _ in range(2))
    with torch.no_grad():  # a student unlike its teacher, so that gradients are no rounding noise
        for one in (adapter, other):
            one.model.get_parameter("network.head.weight").mul_(1.5)
    optimizer = torch.optim.Adam(
        [{"params": other.model.parameters(), "lr": 1e-3}, {"params": other.adapters.parameters(), "lr": 1e-2}]
    )
    for images in stream(adapter, 3):
        torch.testing.assert_close(adapter(images), by_the_book(other, images, optimizer), rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(adapter.scales, other.scales)
    assert_close(adapter, other, rtol=1e-2, atol=3e-4)


def test_restore_puts_everything_back_and_the_teacher_keeps_its_share(vit: VisionModel) -> None:
    rates = {"learning_rate": 1e-2, "adapter_learning_rate": 1e-2, "loss": "symmetric"}
    adapter, fresh = ViDA(vit, **SMALL, **rates, restore=1.0), ViDA(vit, **SMALL)
    adapter(stream(adapter, 1)[0])
    for mine, source in ((adapter.model, fresh.model), (adapter.adapters, fresh.adapters)):
        assert same(mine, source)
    assert not same(adapter.teacher, fresh.teacher)


# Warm-up
