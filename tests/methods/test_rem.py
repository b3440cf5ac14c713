"""REM: the ranked losses, what the class token attends to, and passes without it."""

from typing import Any

import pytest
import torch
from torch import Tensor

from support.networks import hugging_face
from testdg.methods.parts.entropy import largest_entropy
from testdg.methods.rem import REM, LastAttention, consistency, least_attended, ranking
from testdg.models import TinyViT, VisionModel
from testdg.testing import stream

VIEWS = [[2.0, 0.0, -1.0], [1.5, 0.2, -0.8], [1.0, 0.4, -0.5]]


def views(reverse: bool = False) -> list[Tensor]:
    rows = VIEWS[::-1] if reverse else VIEWS
    return [torch.tensor([row], requires_grad=True) for row in rows]


@pytest.mark.parametrize(
    ("reverse", "share", "agree", "ranks"),
    [
        (False, 0.0, 2.066270, 0.0),
        (False, 0.1, 2.066270, 0.0),
        (False, 0.3, 2.066270, 0.110948 + 0.125690),
        (True, 0.0, 2.962169, 0.203894 + 0.422529 + 0.218636),
    ],
)
def test_losses_are_the_worked_numbers(reverse: bool, share: float, agree: float, ranks: float) -> None:
    assert float(consistency(views(reverse)).detach()) == pytest.approx(agree, abs=2e-6)
    assert float(ranking(views(reverse), largest_entropy(3, share)).detach()) == pytest.approx(ranks, abs=2e-6)


@pytest.mark.parametrize(
    ("reverse", "gradients"),
    [
        (False, {0: [0.0, 0.0, 0.0], 1: [-0.115352, 0.084329, 0.031023], 2: [-0.443533, 0.306727, 0.136805]}),
        (True, {0: [-0.422949, 0.139549, 0.283400], 2: [0.394794, -0.279857, -0.114937]}),
    ],
)
def test_gradients_are_the_worked_numbers(reverse: bool, gradients: dict[int, list[float]]) -> None:
    logits = views(reverse)
    (consistency(logits) + ranking(logits, 0.0)).backward()
    for place, expected in gradients.items():
        found = logits[place].grad
        assert found is not None
        torch.testing.assert_close(found[0], torch.tensor(expected), atol=2e-6, rtol=0)


def test_the_most_attended_patches_go() -> None:
    scores = torch.tensor([[0.10, 0.40, 0.05, 0.25, 0.20]])
    assert sorted(least_attended(scores, 0.2)[0].tolist()) == [0, 2, 3, 4]
    assert sorted(least_attended(scores, 0.4)[0].tolist()) == [0, 2, 4]


@pytest.mark.parametrize(
    ("patches", "step", "counts"),
    [(196, 0.1, [176, 156, 137]), (576, 0.1, [518, 460, 403]), (196, 0.05, [186, 176, 166]), (10, 0.1, [9, 8, 7])],
)
def test_as_many_patches_stay_as_published(patches: int, step: float, counts: list[int]) -> None:
    scores = torch.rand(2, patches)
    assert [least_attended(scores, k * step).shape[1] for k in (1, 2, 3)] == counts


def literal_attention(model: VisionModel, images: Tensor) -> Tensor:
    """What the class token of a TinyViT attends to in its last block, by the formula."""
    network = model.network
    assert isinstance(network, TinyViT)
    x = network.patches(model.normalise(images)).flatten(2).mT
    x = torch.cat([network.token.expand(len(x), -1, -1), x], 1) + network.position
    block: Any = network.blocks[1]
    qkv = block.attention.qkv(block.norm1(network.blocks[0](x))).unflatten(-1, (3, 4, 8))
    q, k = qkv[:, :, 0], qkv[:, :, 1]
    return (torch.einsum("nthd,nshd->nhts", q, k) / 8**0.5).softmax(-1)[:, :, 0, 1:].mean(1)


def seen(model: VisionModel, images: Tensor) -> Tensor:
    with LastAttention() as attention:
        model(images)
    scores = attention.of_class_token(1)
    assert scores is not None
    return scores


def test_attention_of_the_tiny_vit_is_the_formula(vit: VisionModel) -> None:
    images = torch.rand(3, 3, 32, 32)
    torch.testing.assert_close(seen(vit, images), literal_attention(vit, images))


@pytest.mark.parametrize("kind", ["hf-vit", "hf-dinov2"])
def test_attention_is_read_the_same_in_one_kernel_or_step_by_step(kind: str) -> None:
    model, images = hugging_face(kind), torch.rand(3, 3, 32, 32)
    network: Any = model.network
    found = {}
    for way in ("sdpa", "eager"):
        network.set_attn_implementation(way)
        found[way] = seen(model, images)
        assert found[way].shape == (3, 16)
        assert bool((found[way].sum(1) < 1).all())  # the class token gives some to itself
    torch.testing.assert_close(found["sdpa"], found["eager"])


@pytest.mark.parametrize("kind", ["tiny", "hf-vit", "hf-dinov2"])
def test_patches_that_are_left_out_do_not_matter(vit: VisionModel, kind: str) -> None:
    model = vit if kind == "tiny" else hugging_face(kind)
    adapter, images = REM(model), torch.rand(2, 3, 32, 32)
    scores = torch.rand(2, 16)
    torch.testing.assert_close(adapter._without(images, scores, 0.0), model(images).logits)
    gone = scores.topk(2, 1).indices  # of 16, a share of 0.1 leaves 14
    other = images.clone()
    for image, places in zip(other, gone.tolist(), strict=True):
        for place in places:
            image[:, place // 4 * 8 : place // 4 * 8 + 8, place % 4 * 8 : place % 4 * 8 + 8] = torch.rand(3, 8, 8)
    torch.testing.assert_close(adapter._without(other, scores, 0.1), adapter._without(images, scores, 0.1))
    assert not torch.allclose(model(other).logits, model(images).logits, atol=1e-5)


def test_it_learns_to_agree(vit: VisionModel) -> None:
    adapter = REM(vit, learning_rate=1e-2)
    images = stream(adapter, 1, 12)[0]
    adapter(images)
    first = float(adapter.diagnostics["consistency"])
    for _ in range(20):
        adapter(images)
    assert float(adapter.diagnostics["consistency"]) < first
