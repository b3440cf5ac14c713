"""BECoTTA: its experts and routers, and one batch by the book."""

import copy
import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from support.literal import assert_close, literal_views
from support.networks import confident, segformer
from testdg.methods.becotta import Becotta, Experts, noisy_routers
from testdg.methods.parts.added_layers import added_layers
from testdg.models import VisionModel
from testdg.testing import stream

CPU = torch.device("cpu")


def stirred(width: int = 6, rank: int = 2, experts: int = 4, chosen: int = 2, seed: int = 0) -> Experts:
    part = Experts(width, rank, experts, chosen, torch.Generator().manual_seed(seed), CPU)
    generator = torch.Generator().manual_seed(seed + 1)
    with torch.no_grad():
        for parameter in part.parameters():
            parameter.normal_(generator=generator)
    return part


def stir(adapter: Becotta) -> Becotta:
    """Experts that are no longer nothing, here and in the copy from before the stream."""
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for part in added_layers(adapter.model):
            part.get_parameter("up").normal_(0, 0.2, generator=generator)
    adapter.source.load_state_dict(adapter.model.state_dict())
    return adapter


# The experts


def literal(part: Experts, h: Tensor) -> Tensor:
    """Expert by expert, token by token."""
    found = []
    for tokens in h.double():
        scores = (tokens @ part.router.detach().double())[:, : part.down.shape[0]].mean(0)
        best = scores.argsort(descending=True)[: part.chosen].tolist()
        total = sum(math.exp(float(scores[e])) for e in best)
        rows = []
        for token in tokens:
            out = token.clone()
            for e in best:
                inner = F.gelu(part.down[e].double() @ token + part.down_bias[e].double())
                gate = math.exp(float(scores[e])) / total
                out = out + gate * (part.up[e].double().T @ inner + part.up_bias[e].double())
            rows.append(out)
        found.append(torch.stack(rows))
    return torch.stack(found)


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 100), images=st.integers(1, 3), chosen=st.integers(1, 4))
def test_a_blend_is_the_gated_sum_of_the_chosen_experts(seed: int, images: int, chosen: int) -> None:
    part = stirred(chosen=chosen, seed=seed)
    h = torch.randn(images, 5, 6, generator=torch.Generator().manual_seed(seed))
    torch.testing.assert_close(part(h).double(), literal(part, h), rtol=1e-4, atol=1e-4)
    grid = part(h.view(images, 1, 5, 6))
    torch.testing.assert_close(grid.view(images, 5, 6), part(h))


def test_images_choose_for_themselves_and_routers_learn() -> None:
    part = stirred()
    h = torch.randn(8, 5, 6, generator=torch.Generator().manual_seed(3))
    _, which = part.gates(h)
    assert len({tuple(row) for row in which.tolist()}) > 1
    (gradient,) = torch.autograd.grad(part(h).sum(), part.router)
    assert gradient[:, :4].any()


@pytest.mark.parametrize("images", [1, 3])
def test_as_released_the_first_experts_always_run_and_routers_never_learn(images: int) -> None:
    part = stirred()
    part.as_released = True
    h = torch.randn(images, 5, 6, generator=torch.Generator().manual_seed(3))
    best = [sorted((tokens @ part.router)[:, :4].sum(0).tolist(), reverse=True)[:2] for tokens in h]
    if images > 1:  # scores of several images are scaled to [0, 1], all together
        low, high = min(map(min, best)), max(map(max, best))
        best = [[(score - low) / (high - low) for score in scores] for scores in best]
    gates = torch.tensor(best[0]).softmax(0)
    expected = h.clone()
    for e in (0, 1):
        inner = F.gelu(h @ part.down[e].T + part.down_bias[e])
        expected = expected + gates[e] * (inner @ part.up[e] + part.up_bias[e])
    torch.testing.assert_close(part(h), expected, rtol=1e-4, atol=1e-4)
    gradients = torch.autograd.grad(part(h).sum(), [part.router, part.down], allow_unused=True)
    assert gradients[0] is None
    assert gradients[1] is not None
    assert not gradients[1][2:].any()


def test_as_released_equal_scores_have_equal_gates() -> None:
    part = stirred()
    part.as_released = True
    gates, _ = part.gates(torch.zeros(3, 5, 6))
    assert torch.equal(gates, torch.full((3, 2), 0.5))


def test_noise_is_drawn_only_where_it_is_asked_for(vit: VisionModel) -> None:
    adapter = stir(Becotta(vit, experts=6, chosen=1))
    images = stream(adapter, 1)[0]
    plain = adapter.predict(images)
    state = adapter.generator.get_state()
    with noisy_routers(adapter.model, adapter.generator), torch.no_grad():
        noisy = adapter.model(images).logits
    assert not torch.equal(noisy, plain)
    assert not torch.equal(adapter.generator.get_state(), state)
    assert torch.equal(adapter.predict(images), plain)


# One batch


def test_a_batch_is_one_step_down_the_entropy_of_sure_predictions(vit: VisionModel) -> None:
    model = confident(vit, 30.0)
    options: dict[str, Any] = {"learning_rate": 1e-3, "restore": 0.0, "margin": 0.25}
    adapter, other = stir(Becotta(model, **options)), stir(Becotta(model, **options))
    images = stream(adapter, 1, 12)[0]
    logits = other.model(images).logits
    log_p = logits.double().log_softmax(1)
    h = -(log_p.exp() * log_p).sum(1)
    sure = h < 0.25 * math.log(10)
    assert 0 < int(sure.sum()) < 12
    h[sure].mean().backward()
    torch.optim.Adam(added_layers(other.model).parameters(), lr=1e-3).step()
    torch.testing.assert_close(adapter(images), logits.detach())
    assert float(adapter.diagnostics["learnt_from"]) == pytest.approx(float(sure.float().mean()))
    assert_close(added_layers(adapter.model), added_layers(other.model), rtol=1e-3, atol=1e-4)


def test_only_experts_and_routers_move_and_restore_puts_them_back(vit: VisionModel) -> None:
    for share, same in ((1.0, True), (0.0, False)):
        adapter = stir(Becotta(vit, learning_rate=1e-2, restore=share, margin=1.0))
        start = copy.deepcopy(added_layers(adapter.model).state_dict())
        for images in stream(adapter, 2):
            adapter(images)
        now = added_layers(adapter.model).state_dict()
        assert all(torch.equal(now[name], value) for name, value in start.items()) is same
        assert all(name.startswith("model.parts.") for name in adapter.trainable())


# Segmentation


def test_pixels_take_one_view_where_it_is_sure_and_surer_than_before() -> None:
    adapter = stir(Becotta(confident(segformer(), 3000.0), learning_rate=1e-3, margin=1.0, restore=0.0))
    images = stream(adapter, 1, 2)[0]
    adapter(images)
    now, before = adapter.model, adapter.source
    with torch.no_grad():
        plain = now(images).logits.softmax(1)
        total = literal_views(now, images, (0.5, 1.0, 1.5, 2.0))
        q, old = plain.amax(1), before(images).logits.softmax(1).amax(1)
    mask = (q > 0.69) & (q >= old)
    assert 0 < float(mask.float().mean()) < float((q > 0.69).float().mean())
    found = adapter(images)
    gaps = (found.exp() - torch.where(mask[:, None], plain, total)).abs().amax(1)
    assert float((gaps < 1e-3).float().mean()) > 0.999


def test_as_released_pixels_with_a_large_loss_teach() -> None:
    adapter = Becotta(confident(segformer(), 3000.0), as_released=True, learning_rate=1e-3)
    images = stream(adapter, 1, 2)[0]
    with noisy_routers(adapter.model, torch.Generator().manual_seed(0)), torch.no_grad():
        adapter.model(images)  # noise works on maps too
    adapter.reset()
    adapter(images)
    assert 0 < float(adapter.diagnostics["learnt_from"]) < 1
    assert float(adapter.diagnostics["loss"]) >= 0.4
    routers = [part.get_parameter("router") for part in added_layers(adapter.model)]
    starts = [part.get_parameter("router") for part in added_layers(adapter.source)]
    assert all(torch.equal(a, b) for a, b in zip(routers, starts, strict=True))
