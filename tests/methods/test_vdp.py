"""VDP: prompts in the picture, what holds them back, and one batch by the book."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from support.errors import refused
from support.literal import average
from support.networks import any_size
from testdg.methods.vdp import VDP, Homeostasis, Prompts
from testdg.models import Preprocessing, VisionModel, load_model
from testdg.testing import snapshot, stream

CPU = torch.device("cpu")


def stirred(size: int) -> Prompts:
    prompts = Prompts(3, size, CPU)
    with torch.no_grad():
        for number, parameter in enumerate(prompts.parameters()):
            parameter.normal_(generator=torch.Generator().manual_seed(number))
    return prompts


# Prompts


@pytest.mark.parametrize(("height", "width"), [(8, 8), (5, 9), (4, 4)])
def test_prompts_lie_in_opposite_corners_of_images_of_any_size(height: int, width: int) -> None:
    prompts, images = stirred(4), torch.rand(2, 3, height, width)
    found = prompts(images)
    for n in range(2):
        for c in range(3):
            for y in range(height):
                for x in range(width):
                    value = float(images[n, c, y, x])
                    if y < 4 and x < 4:
                        value += float(prompts.agnostic[c, y, x].detach())
                    if y >= height - 4 and x >= width - 4:
                        value += float(prompts.specific[c, y - height + 4, x - width + 4].detach())
                    assert float(found[n, c, y, x].detach()) == pytest.approx(value, abs=1e-6)


def test_a_prompt_that_is_larger_than_the_image_is_refused(vit: VisionModel) -> None:
    with refused("setting-range", "prompt_size", "32", "33"):
        VDP(vit, prompt_size=33)
    adapter = VDP(any_size(), prompt_size=33)
    before = snapshot(adapter)[0]
    with refused("setting-range", "32", "33"):
        adapter(torch.rand(1, 3, 32, 64))
    assert all(torch.equal(value, adapter.tensors()[name]) for name, value in before.items())


# Homeostasis


def test_importance_and_penalty_are_the_formulas() -> None:
    generator = torch.Generator().manual_seed(0)
    values = torch.randn(3, dtype=torch.float64, generator=generator)
    memory = Homeostasis(values, damping=0.1)
    importance, start, now = [0.0] * 3, values.tolist(), values.clone()
    for _ in range(2):  # two domains of four batches
        path = [0.0] * 3
        for _ in range(4):
            gradient, step = torch.randn(2, 3, dtype=torch.float64, generator=generator)
            memory.travel(gradient, step)
            path = [p - float(g) * float(d) for p, g, d in zip(path, gradient, step, strict=True)]
            now = now + step
        memory.close(now)
        for i in range(3):
            importance[i] += max(path[i], 0) / ((float(now[i]) - start[i]) ** 2 + 0.1)
        start = now.tolist()
        assert memory.importance.tolist() == pytest.approx(importance)
    assert max(importance) > 0
    probe = torch.randn(3, dtype=torch.float64, generator=generator, requires_grad=True)
    expected = sum(w * (float(v) - a) ** 2 for w, v, a in zip(importance, probe.detach(), start, strict=True))
    assert float(memory.penalty(probe).detach()) == pytest.approx(expected)
    (gradient,) = torch.autograd.grad(memory.penalty(probe), probe)
    torch.testing.assert_close(memory.gradient(probe.detach()), gradient)


def test_a_step_that_was_left_out_is_not_remembered() -> None:
    memory = Homeostasis(torch.zeros(3), damping=0.1)
    memory.travel(torch.tensor([math.nan, math.inf, 1.0]), torch.tensor([0.0, 0.0, -2.0]))
    assert memory.path.tolist() == [0, 0, 2]


# One batch


def brightness_model() -> VisionModel:
    """Two classes; the brighter the image, the surer the first one."""
    torch.manual_seed(0)
    head = nn.Linear(3, 2)
    with torch.no_grad():
        head.weight.copy_(torch.tensor([[2.0, 2.0, 2.0], [0.0, 0.0, 0.0]]))
        head.bias.zero_()
    network = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), head)
    return load_model(network, preprocessing=Preprocessing((8, 8)))


def test_one_jump_of_the_confidence_is_one_change() -> None:
    adapter = VDP(brightness_model(), prompt_size=2, threshold=0.1, learning_rate=1e-3)
    changes = []
    for brightness in [0.8] * 5 + [0.1] * 5:
        if not any(changes):
            assert float(adapter.memory.importance.abs().max()) == 0
        adapter(torch.full((4, 3, 8, 8), brightness))
        changes.append(adapter.diagnostics["change"])
    assert [number for number, changed in enumerate(changes) if changed] == [5]
    assert float(adapter.memory.importance.max()) > 0


def by_the_book(adapter: VDP, images: Tensor, state: dict[str, Any]) -> Tensor:
    """The step with autograd on the whole loss and Adam of torch; `state` carries what lasts."""
    s, prompts = adapter.settings, adapter.prompts
    with torch.no_grad():
        taught = adapter.model(adapter.teacher(images)).logits
    confidence = float(taught.softmax(1).amax(1).mean())
    phi = prompts.agnostic.detach()
    if "confidence" in state and abs(confidence - state["confidence"]) > s.threshold:
        gained = state["omega"].clamp(min=0) / ((phi - state["anchor"]) ** 2 + s.damping)
        state.update(Lambda=state["Lambda"] + gained, anchor=phi.clone(), omega=torch.zeros_like(phi))
        state["changes"] += 1
    state["confidence"] = confidence
    student = adapter.model(prompts(adapter.augment(images, adapter.generator))).logits
    loss = -(taught.softmax(1) * student.log_softmax(1)).sum(1).mean()
    (gradient,) = torch.autograd.grad(loss, prompts.agnostic, retain_graph=True)
    penalty = (state["Lambda"] * (prompts.agnostic - state["anchor"]) ** 2).sum()
    before = phi.clone()
    state["optimizer"].zero_grad()
    (loss + s.homeostasis * penalty).backward()
    state["optimizer"].step()
    state["omega"] = state["omega"] - gradient * (prompts.agnostic.detach() - before)
    average(adapter.teacher, prompts, s.momentum)
    return taught


def test_a_stream_with_a_change_by_the_book(vit: VisionModel) -> None:
    settings = {"prompt_size": 5, "momentum": 0.5, "homeostasis": 20.0, "threshold": 0.002, "learning_rate": 0.1}
    adapter, other = VDP(vit, **settings), VDP(vit, **settings)
    adapter.memory.importance.fill_(0.1)  # as if a domain had ended before
    zero = torch.zeros(3, 5, 5)
    state: dict[str, Any] = {"Lambda": zero + 0.1, "omega": zero, "anchor": zero, "changes": 0}
    state["optimizer"] = torch.optim.Adam(other.prompts.parameters(), lr=0.1)
    for images in stream(adapter, 8):
        torch.testing.assert_close(adapter(images), by_the_book(other, images, state), rtol=1e-4, atol=1e-5)
    assert 0 < state["changes"] < 8
    torch.testing.assert_close(adapter.memory.importance, state["Lambda"], rtol=1e-3, atol=1e-6)
    torch.testing.assert_close(adapter.memory.path, state["omega"], rtol=1e-2, atol=1e-7)
    torch.testing.assert_close(adapter.prompts.agnostic, other.prompts.agnostic, rtol=1e-3, atol=1e-4)
    assert float(adapter.diagnostics["penalty"]) > 0
