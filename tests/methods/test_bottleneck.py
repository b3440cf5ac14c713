"""Low-rank branches: merged weights give what explicit branches parallel to the layers give."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from support.networks import hugging_face
from testdg.methods.parts.bottleneck import Bottleneck
from testdg.models import Preprocessing, TinyViT, VisionModel, load_model


class ConvolutionToy(nn.Module):
    def __init__(self, **shape: int) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(3, 5, **shape)
        self.head = nn.Linear(5, 3)

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.convolution(images).mean((2, 3)))


def branched(network: nn.Module, size: int, rank: int = 2) -> tuple[VisionModel, Bottleneck]:
    """A model with branches that are no longer zero."""
    model = load_model(network, preprocessing=Preprocessing((size, size)))
    return model, stirred(Bottleneck(model, rank, torch.Generator().manual_seed(0)))


def stirred(amplifier: Bottleneck) -> Bottleneck:
    with torch.no_grad():
        for parameter in amplifier.parameters():
            parameter.normal_(0, 0.3, generator=torch.Generator().manual_seed(parameter.numel()))
    return amplifier


def factors(amplifier: Bottleneck) -> tuple[Tensor, Tensor]:
    """`up` and `down` of a model with a single branch, as matrices."""
    (up,), (down,) = amplifier.up.values(), amplifier.down.values()
    return up.flatten(0, -2), down.flatten(0, -2)


@pytest.mark.parametrize("kind", ["vit", "cnn"])
def test_branches_start_as_nothing(kind: str, request: pytest.FixtureRequest) -> None:
    model: VisionModel = request.getfixturevalue(kind)
    amplifier = Bottleneck(model, 4, torch.Generator().manual_seed(0))
    images = torch.rand(3, 3, 32, 32)
    assert all(float(down.detach().abs().max()) > 0 for down in amplifier.down.values())
    one, other = amplifier.run(model, images), model(images)
    assert torch.equal(one.logits, other.logits)
    assert torch.equal(one.features, other.features)


@pytest.mark.parametrize(
    "shape",
    [
        {"kernel_size": 1},
        {"kernel_size": 1, "stride": 2},
        {"kernel_size": 3, "padding": 1},
        {"kernel_size": 3, "stride": 2, "padding": 1},
        {"kernel_size": 3, "stride": 2},
        {"kernel_size": 3, "padding": 2, "dilation": 2},
        {"kernel_size": 5, "stride": 2, "padding": 2},
        {"kernel_size": 7, "stride": 4, "padding": 3},
        {"kernel_size": 4, "stride": 4},
        {"kernel_size": 2, "stride": 2, "padding": 1},
    ],
    ids=str,
)
def test_a_convolution_with_its_branch(shape: dict[str, int]) -> None:
    network = ConvolutionToy(**shape)
    model, amplifier = branched(network, 16)
    up, down = factors(amplifier)
    images = torch.rand(2, 3, 16, 16)
    plain = network.convolution(images)
    # The branch reads the pixel under the centre of the kernel (left of it where the kernel is even).
    start = (shape["kernel_size"] - 1) // 2 * shape.get("dilation", 1)
    stride = shape.get("stride", 1)
    seen = F.pad(images, (shape.get("padding", 0),) * 4)[:, :, start::stride, start::stride]
    seen = seen[:, :, : plain.shape[2], : plain.shape[3]]
    branch = F.conv2d(F.conv2d(seen, down[:, :, None, None]), up[:, :, None, None])
    expected = (plain + branch).mean((2, 3))
    torch.testing.assert_close(amplifier.run(model, images).features, expected)
    if 2 * shape.get("padding", 0) == shape["kernel_size"] - 1:
        assert torch.equal(seen, images[:, :, ::stride, ::stride])


@pytest.mark.parametrize("kind", ["vit", "cnn"])
def test_a_whole_network_with_branches_beside_its_layers(kind: str, request: pytest.FixtureRequest) -> None:
    model: VisionModel = request.getfixturevalue(kind)
    amplifier = stirred(Bottleneck(model, 4, torch.Generator().manual_seed(0)))
    images = torch.rand(3, 3, 32, 32)
    merged = amplifier.run(model, images).logits
    before = {name: value.clone() for name, value in model.state_dict().items()}

    def parallel(delta: Tensor) -> Callable[[nn.Module, tuple[Tensor, ...], Tensor], Tensor]:
        left, values, right = torch.linalg.svd(delta.double().flatten(1))
        up, down = (left[:, :4] * values[:4]).float(), right[:4].float()
        assert values[4:].max() < 1e-5 * values[0], "the branch has a larger rank"

        def add(layer: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
            if isinstance(layer, nn.Linear):
                return output + inputs[0] @ down.T @ up.T
            assert isinstance(layer, nn.Conv2d)
            narrow = F.conv2d(inputs[0], down.view(4, *layer.weight.shape[1:]), None, layer.stride, layer.padding)
            return output + F.conv2d(narrow, up[:, :, None, None])

        return add

    weights = amplifier.merged(model)
    assert len(weights) == {"vit": 4, "cnn": 3}[kind]
    for name, weight in weights.items():
        layer = model.get_submodule(name.removesuffix(".weight"))
        layer.register_forward_hook(parallel(weight.detach() - layer.get_parameter("weight").detach()))
    torch.testing.assert_close(model(images).logits, merged, rtol=1e-4, atol=1e-5)
    changed = [name for name, value in model.state_dict().items() if not torch.equal(value, before[name])]
    assert not changed


def test_query_key_and_value_share_one_down_projection() -> None:
    model = hugging_face("hf-vit")
    amplifier = stirred(Bottleneck(model, 3, torch.Generator().manual_seed(0)))
    deltas = {
        name: (weight - model.get_parameter(name)).detach().double() for name, weight in amplifier.merged(model).items()
    }
    groups = model.attention_linears()
    assert [len(group) for group in groups] == [3, 1, 3, 1]

    def rank(names: list[str]) -> int:
        """Dimension of what the branches of some layers read."""
        together = torch.cat([deltas[f"{name}.weight"] for name in names])
        return int(torch.linalg.matrix_rank(together, rtol=1e-5))

    assert [rank(group) for group in groups] == [3, 3, 3, 3]
    assert rank(groups[0] + groups[2]) == 6
    outputs = torch.cat([deltas[f"{name}.weight"] for name in groups[0]], 1)
    assert int(torch.linalg.matrix_rank(outputs, rtol=1e-5)) == 9  # each has its own up-projection


def size(amplifier: Bottleneck) -> int:
    return sum(parameter.numel() for parameter in amplifier.parameters())


def test_number_of_parameters_beside_vit_base(vit_base: VisionModel) -> None:
    expected = 12 * 128 * (768 + 3 * 768 + 768 + 768)
    assert expected == 7_077_888
    assert size(Bottleneck(vit_base, 128, torch.Generator())) == expected


def test_fused_attention_has_a_branch_of_the_same_size() -> None:
    with torch.device("meta"):
        network = TinyViT(size=32, patch=16, width=768, depth=12, heads=12)
    model = load_model(network.to_empty(device="cpu"), preprocessing=Preprocessing((32, 32)))
    assert size(Bottleneck(model, 128, torch.Generator())) == 7_077_888


def test_gradients_reach_the_branches_and_not_a_frozen_model(vit: VisionModel) -> None:
    vit.requires_grad_(False)
    amplifier = stirred(Bottleneck(vit, 4, torch.Generator().manual_seed(0)))
    amplifier.run(vit, torch.rand(2, 3, 32, 32)).logits.square().sum().backward()
    assert all(p.grad is not None and float(p.grad.abs().max()) > 0 for p in amplifier.parameters())
    assert all(p.grad is None for p in vit.parameters())
