"""Layers are found by structure: attention by the inputs that its linears share, norms and convolutions by type."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from testdg.models import Preprocessing, TinyCNN, TinyViT, VisionModel, load_model

MakeFolder = Callable[[str], tuple[Path, Any]]


def last_words(groups: list[list[str]]) -> list[list[str]]:
    return [[name.split(".")[-1] for name in group] for group in groups]


def linears_of(model: VisionModel, groups: list[list[str]]) -> bool:
    return all(isinstance(model.get_submodule(name), nn.Linear) for group in groups for name in group)


def test_query_key_and_value_of_a_vit_share_one_input(make_folder: MakeFolder) -> None:
    for kind in ("vit", "dinov2"):
        model = load_model(make_folder(kind)[0])
        groups = model.attention_linears()
        assert [len(group) for group in groups] == [3, 1, 3, 1], kind
        assert linears_of(model, groups)
        weights = {name: model.get_submodule(name) for group in groups for name in group}
        assert len(weights) == 8, kind


def test_a_fused_projection_is_a_group_of_its_own() -> None:
    model = load_model(TinyViT(width=16, depth=2), preprocessing=Preprocessing((32, 32)))
    assert last_words(model.attention_linears()) == [["qkv"], ["proj"]] * 2


def test_key_and_value_of_a_segformer_share_the_reduced_input(make_folder: MakeFolder) -> None:
    model = load_model(make_folder("segformer")[0])
    groups = model.attention_linears()
    assert linears_of(model, groups)
    sizes = [len(group) for group in groups]
    # query | key, value | output where keys and values are shortened; query, key, value | output in the last stage
    assert sizes == [1, 2, 1] * 3 + [3, 1]


def test_looking_for_layers_leaves_the_model_alone() -> None:
    model = load_model(TinyCNN(width=4))
    model.train()
    before = model.fingerprint()
    assert model.attention_linears() == []
    model.convolutions()
    assert model.training
    assert model.fingerprint() == before
    assert not any(module._forward_pre_hooks for module in model.modules())


def test_convolutions_are_grouped_by_input() -> None:
    class Branches(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two = nn.Conv2d(3, 4, 1), nn.Conv2d(3, 4, 1)
            self.depthwise = nn.Conv2d(4, 4, 3, groups=4)
            self.head = nn.Linear(4, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.head(self.depthwise(self.one(x) + self.two(x)).mean((2, 3)))

    assert load_model(Branches()).convolutions() == [["network.one", "network.two"]]
    model = load_model(TinyCNN(width=4))
    assert model.convolutions() == [[f"network.stages.{stage}.0"] for stage in range(3)]


def test_norm_layers_of_every_kind_are_found() -> None:
    vit, cnn = load_model(TinyViT(width=16, depth=2)), load_model(TinyCNN(width=4))
    assert {type(layer) for _, layer in vit.norm_layers()} == {nn.LayerNorm}
    assert len(vit.norm_layers()) == 5
    assert [name for name, _ in cnn.norm_layers()] == [f"network.stages.{stage}.1" for stage in range(3)]
    grouped = load_model(nn.Sequential(nn.Conv2d(3, 4, 1), nn.GroupNorm(2, 4), nn.Flatten(), nn.Linear(16, 2)))
    assert [type(layer) for _, layer in grouped.norm_layers()] == [nn.GroupNorm]


def test_a_fingerprint_tells_weights_apart() -> None:
    torch.manual_seed(0)
    model = load_model(TinyCNN(width=4))
    first = model.fingerprint()
    assert len(first) == 12
    assert int(first, 16) >= 0
    assert model.fingerprint() == first
    torch.manual_seed(0)
    assert load_model(TinyCNN(width=4)).fingerprint() == first
    with torch.no_grad():
        model.get_parameter("network.head.bias")[0] += 1e-6
    changed = model.fingerprint()
    assert changed != first
    model.get_buffer("network.stages.0.1.running_mean")[0] += 1
    assert model.fingerprint() not in (first, changed)
