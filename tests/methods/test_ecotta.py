"""EcoTTA: its meta networks, what they are held to, and one batch by the book."""

import copy
import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from support.literal import assert_close, literal_views
from support.networks import confident, segformer
from support.passes import counted
from testdg.methods.ecotta import Ecotta, MetaNetwork, partition
from testdg.methods.parts.added_layers import added_layers, watched
from testdg.methods.parts.entropy import reliable_entropy
from testdg.models import VisionModel
from testdg.testing import stream

CPU = torch.device("cpu")


def warm(model: VisionModel, **settings: Any) -> Ecotta:
    adapter = Ecotta(model, **{"source_images": 12, **settings})
    labels = torch.arange(6) % model.classes
    maps = labels.view(6, 1, 1).expand(6, 16, 16)
    labels = maps if model.task == "segmentation" else labels
    adapter.warm_up((images, labels) for images in stream(adapter, 2, 6, seed=1))
    return adapter


def stir(adapter: Ecotta, scale: float = 0.3) -> Ecotta:
    """Meta networks that are far from handing on what they get."""
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for parameter in added_layers(adapter.model).parameters():
            parameter.add_(scale * torch.randn(parameter.shape, generator=generator))
    return adapter


# The meta networks


@pytest.mark.parametrize(
    ("blocks", "sizes"), [(12, [2, 2, 4, 4]), (18, [3, 3, 6, 6]), (16, [3, 3, 5, 5]), (3, [1, 1, 1]), (1, [1])]
)
def test_parts_have_the_published_sizes(blocks: int, sizes: list[int]) -> None:
    assert [end - start + 1 for start, end in partition(blocks)] == sizes


def test_the_distance_to_the_frozen_output_is_a_mean_and_reaches_its_own_meta_network_alone() -> None:
    class Shift(MetaNetwork):
        def forward(self, entered: Tensor, left: Tensor) -> Tensor:
            return left + 0.5 * self.norm.weight[0]

    meta = Shift(1, 1, 1, 3, generator=torch.Generator(), device=CPU)
    meta.seen = []
    left = torch.tensor([1.0, -1.0]).view(1, 1, 1, 2).requires_grad_()
    adapted = meta.adapt(left, left)
    assert adapted.flatten().tolist() == [1.5, -0.5]
    (distance,) = meta.seen
    assert float(distance.detach()) == 0.5
    gradients = torch.autograd.grad(0.5 * distance, [meta.norm.weight, left], allow_unused=True)
    assert gradients[0] is not None
    assert float(gradients[0]) == 0.25
    assert gradients[1] is None


@pytest.mark.parametrize("kind", ["vit", "cnn"])
def test_the_pass_by_the_book(kind: str, request: pytest.FixtureRequest) -> None:
    """Each part's input is the adapted output of the part before, and the convolution reads it too."""
    model: VisionModel = request.getfixturevalue(kind)
    adapter = stir(warm(model, batch_statistics=False))
    metas, network = added_layers(adapter.model), copy.deepcopy(model.network).double()
    images = stream(adapter, 1)[0]
    x = model.normalise(images).double()
    if kind == "vit":
        x = network.patches(x).flatten(2).mT
        x = torch.cat([network.token.expand(6, -1, -1), x], 1) + network.position
        blocks = list(network.blocks)
    else:
        blocks = list(network.stages)
    for meta, block in zip(copy.deepcopy(metas).double(), blocks, strict=True):
        out = block(x)
        maps = (lambda t: t.mT[..., None]) if kind == "vit" else (lambda t: t)
        conv = F.conv2d(maps(x), meta.conv.weight, stride=meta.conv.stride, padding=meta.conv.padding)
        both = []
        for norm, value in ((meta.norm, maps(out)), (meta.conv_norm, conv)):
            mean, variance = (t.view(-1, 1, 1) for t in (norm.running_mean, norm.running_var))
            scaled = (value - mean) / (variance + norm.eps).sqrt()
            both.append(scaled * norm.weight.view(-1, 1, 1) + norm.bias.view(-1, 1, 1))
        x = both[0] + both[1].clamp(min=0)
        x = x[..., 0].mT if kind == "vit" else x
    expected = network.head(network.norm(x[:, 0]) if kind == "vit" else x.mean((2, 3)))
    torch.testing.assert_close(adapter.predict(images).double(), expected, rtol=1e-3, atol=1e-4)
    assert not torch.allclose(adapter.predict(images), model(images).logits, atol=1e-2)


@pytest.mark.parametrize("kind", ["vit", "cnn"])
@pytest.mark.parametrize("batch_statistics", [True, False])
def test_the_warm_up_begins_with_nearly_the_source(
    kind: str, batch_statistics: bool, request: pytest.FixtureRequest
) -> None:
    model: VisionModel = request.getfixturevalue(kind)
    adapter = Ecotta(model, source_images=6, warm_up_learning_rate=0.0, batch_statistics=batch_statistics)
    images = stream(adapter, 1, 6)[0]
    frozen = copy.deepcopy(adapter.model)
    for part in added_layers(frozen):
        part.adapt = lambda entered, left: left  # type: ignore[method-assign,assignment]
    expected, fresh = frozen(images).logits, adapter.predict(images)
    adapter.warm_up([(images, torch.arange(6))])
    apart = (adapter.predict(images) - expected).abs().max()
    assert float(apart) < 0.1 * float((fresh - expected).abs().max())


# The loss


def test_nothing_reliable_is_no_loss_and_no_gradient() -> None:
    p = torch.tensor([[0.9, 0.1], [0.5, 0.5]])
    logits = p.log().requires_grad_()
    loss, reliable = reliable_entropy(logits, 0.4)  # 0.3251 and 0.6931 against 0.2773
    loss.backward()
    assert (float(loss.detach()), reliable.tolist()) == (0.0, [False, False])
    assert logits.grad is not None
    assert not logits.grad.any()
    loss, reliable = reliable_entropy(logits, 0.5)  # against 0.3466
    assert reliable.tolist() == [True, False]
    assert float(loss.detach()) == pytest.approx(-0.9 * math.log(0.9) - 0.1 * math.log(0.1), rel=1e-5)


def test_a_batch_is_one_step_down_entropy_and_distance(vit: VisionModel) -> None:
    model = confident(vit, 30.0)
    settings = {"batch_statistics": False, "regularisation": 0.7, "margin": 0.9}
    adapter, other = warm(model, **settings), warm(model, **settings)
    images = stream(adapter, 1)[0]
    metas = added_layers(other.model)
    optimizer = torch.optim.SGD(metas.parameters(), lr=5e-3, momentum=0.9)
    with watched(other.model) as seen:
        logits = other.model(images).logits
    log_p = logits.log_softmax(1)
    h = -(log_p.exp() * log_p).sum(1)
    kept = h[h < 0.9 * math.log(10)]
    assert len(kept) > 0
    (kept.mean() + 0.7 * sum(values[0] for values in seen)).backward()
    optimizer.step()
    torch.testing.assert_close(adapter(images), logits.detach())
    assert_close(added_layers(adapter.model), metas, rtol=1e-4, atol=1e-6)


def test_layers_of_an_earlier_adapter_are_taken_away(vit: VisionModel) -> None:
    adapter = warm(vit)
    images = stream(adapter, 1)[0]
    adapter(images)
    carrying = adapter.predicting_model()
    before = carrying(images).logits
    again = warm(carrying)
    assert torch.equal(again.predict(images), warm(vit).predict(images))
    assert torch.equal(carrying(images).logits, before)


# Segmentation


def test_as_released_stages_see_the_frozen_maps_and_else_the_adapted_ones() -> None:
    """A meta network that changes the first stage changes what later stages see only in the paper's version."""
    for as_released in (True, False):
        adapter = warm(segformer(), as_released=as_released)
        images = stream(adapter, 1, 2)[0]
        before = adapter.model(images).features
        with torch.no_grad():
            added_layers(adapter.model)[0].norm.bias.add_(1.0)
        assert torch.equal(adapter.model(images).features, before) is as_released
        with watched(adapter.model) as seen:
            adapter.model(images)
        assert [len(values) for values in seen] == [1, 1, 1, 1]


def test_as_released_eight_views_label_and_hard_pixels_teach() -> None:
    model = confident(segformer(), 3000.0)
    adapter, other = (warm(model, as_released=True, learning_rate=1e-2) for _ in range(2))
    images = stream(adapter, 1, 2)[0]
    with counted(adapter) as counts:
        taught = adapter(images)
    assert counts == {"model": 2 * 8 + 2, "backward": 1}
    total = literal_views(other.model, images, (0.5, 1.0, 1.5, 2.0))
    torch.testing.assert_close(taught.softmax(1), total, rtol=1e-4, atol=1e-5)
    losses = F.cross_entropy(other.model(images).logits, total.argmax(1), reduction="none")
    hard = losses >= 0.4
    assert 0 < int(hard.sum()) < hard.numel()
    assert float(adapter.diagnostics["loss"]) == pytest.approx(float(losses[hard].mean().detach()), rel=1e-4)
    losses[hard].mean().backward()  # the distance has no gradient in the release
    torch.optim.SGD(added_layers(other.model).parameters(), lr=1e-2, momentum=0.9).step()
    assert_close(added_layers(adapter.model), added_layers(other.model), rtol=1e-3, atol=1e-5)
