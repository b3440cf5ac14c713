"""ActMAD: moments of activations, their distance to the source, and small batches that wait."""

import pytest
import torch
from torch import Tensor, nn

from support.networks import hugging_face
from testdg.methods.actmad import ActMAD, moment_distance
from testdg.models import Preprocessing, VisionModel, load_model
from testdg.testing import stream

MEAN_3_2, SOURCE = [[3.0, 2.0], [4.0, 4.0]], [[2.0, 2.5], [3.0, 4.5]]


class Plain(nn.Module):
    """Two numbers of an image, through a BatchNorm that leaves them as they are, a ReLU in place and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.relu, self.head = nn.BatchNorm2d(2, eps=0.0), nn.ReLU(inplace=True), nn.Linear(2, 2)

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.relu(self.norm(8 * images[:, :2])).flatten(1))  # type: ignore[no-any-return]


def plain() -> VisionModel:
    return load_model(Plain(), preprocessing=Preprocessing((1, 1)))


def images_of(*rows: tuple[float, float]) -> Tensor:
    return torch.tensor([[*row, 0.0] for row in rows])[:, :, None, None] / 8


def test_the_distance_is_the_worked_number() -> None:
    found = moment_distance(torch.tensor(MEAN_3_2), torch.tensor(SOURCE), [2])
    assert float(found) == pytest.approx(1.5)
    apart = moment_distance(torch.tensor(MEAN_3_2), torch.tensor(SOURCE), [1, 1])  # layers weigh alike
    assert float(apart) == pytest.approx(3.0)


def test_the_source_is_the_mean_of_batches_and_the_loss_the_worked_number() -> None:
    adapter = ActMAD(plain(), least_images=2, learning_rate=0.0)
    adapter.warm_up([images_of((0, 1), (2, 3), (4, 2)), images_of((1, 1), (3, 5)), images_of((7, 7))])
    torch.testing.assert_close(adapter.source, torch.tensor(SOURCE))
    adapter(images_of((1, 0), (5, 2), (3, 4)))
    assert float(adapter.diagnostics["loss"]) == pytest.approx(0.75)


def test_the_gradient_is_the_worked_number() -> None:
    values = torch.tensor([[1.0], [4.0]], requires_grad=True)
    variance, mean = torch.var_mean(values, 0)
    loss = 0.5 * moment_distance(torch.stack([mean, variance]), torch.tensor([[0.0], [1.0]]), [1])
    (gradient,) = torch.autograd.grad(loss, values)
    assert gradient.flatten().tolist() == pytest.approx([-1.25, 1.75])


def test_activations_are_those_before_a_relu_in_place() -> None:
    adapter = ActMAD(plain(), least_images=2)
    with torch.no_grad():
        adapter.model.get_parameter("network.norm.bias").sub_(2.0)
    _, moments = adapter.moments(images_of((1, 1), (3, 3), (5, 5)))  # -1, 1 and 3 in the layer
    torch.testing.assert_close(moments, torch.tensor([[1.0, 1.0], [4.0, 4.0]]))
    (gradient,) = torch.autograd.grad(moments.sum(), [adapter.model.get_parameter("network.norm.bias")])
    assert gradient.tolist() == pytest.approx([1.0, 1.0])


@pytest.mark.parametrize("kind", ["vit", "cnn", "hf-vit"])
def test_the_batch_of_the_source_is_at_home(vit: VisionModel, cnn: VisionModel, kind: str) -> None:
    adapter = ActMAD({"vit": vit, "cnn": cnn}.get(kind) or hugging_face(kind))
    images = stream(adapter, 1, 16)[0]
    adapter.warm_up([images])
    adapter(images)
    assert float(adapter.diagnostics["loss"]) == pytest.approx(0.0, abs=1e-4)


def test_every_token_has_moments_of_its_own(vit: VisionModel) -> None:
    adapter = ActMAD(vit)
    assert list(adapter.sizes.values()) == [17 * 32] * 4 + [32]  # the tiny ViT normalises the class token alone
    assert adapter.source.shape == (2, 4 * 17 * 32 + 32)


def test_it_goes_back_to_the_source(cnn: VisionModel) -> None:
    adapter = ActMAD(cnn, learning_rate=1e-2)
    images = stream(adapter, 1, 32)[0]
    adapter.warm_up([images])
    dark = images * 0.4
    losses = []
    for _ in range(40):
        adapter(dark)
        losses.append(float(adapter.diagnostics["loss"]))
    assert losses[-1] < 0.5 * losses[0]


def test_stored_statistics_stay(cnn: VisionModel) -> None:
    adapter = ActMAD(cnn, trained="all", learning_rate=1e-2)
    batches = stream(adapter, 10, 16)
    adapter.warm_up(batches[:1])
    before = {name: value.clone() for name, value in adapter.model.named_buffers()}
    for images in batches:
        adapter(images)
    assert all(torch.equal(value, before[name]) for name, value in adapter.model.named_buffers())
    assert len(adapter.trainable()) == len(list(adapter.model.parameters()))
    assert not any(module._forward_hooks for module in adapter.model.modules())
