"""Which parameters a method trains: exactly those move, and of a ViT-B there are as many as published."""

from typing import Any

import pytest
import torch

from support.networks import segformer_b5
from testdg import adapt
from testdg.core.weights import weights_and_biases
from testdg.methods import find_method
from testdg.methods.becotta import RANKS, add_experts
from testdg.methods.ecotta import add_to_segformer
from testdg.methods.parts.added_layers import added_layers
from testdg.models import VisionModel
from testdg.testing import stream

Options = dict[str, Any]
MOVING: list[tuple[str, Options, str]] = [
    ("actmad", {"least_images": 6}, "norm"),
    ("becotta", {"margin": 2.0, "restore": 0.0}, "parts"),
    ("continual_mae", {"restore": 0.0}, "weights decoder token"),
    ("cotta", {"restore": 0.0, "threshold": 1.0, "views": 2, "symmetric": True}, "weights"),
    ("dept", {"source_images": 0, "prompts": 5}, "parts head projections"),
    ("ecotta", {"margin": 2.0, "source_images": 12, "warm_up_learning_rate": 0.0}, "parts"),
    ("obao", {}, "body"),
    ("pseudo_label", {}, "norm"),
    ("roid", {}, "norm"),
    ("rotta", {"update_every": 6}, "norm"),
    ("t3a", {}, ""),
    ("tent", {}, "norm"),
    ("vdp", {"prompt_size": 5}, "prompts"),
    ("versatile", {}, "norm"),
    ("versatile", {"trained": "all"}, "all"),
    ("vida", {"source_images": 0, "high_rank": 4, "views": 3}, "all adapters"),
]


def expected(model: VisionModel, parts: str) -> set[str]:
    """Names of the parameters of these parts of the model itself."""
    names = {name for name, _ in model.named_parameters()}
    weights = {name for name in names if name.endswith((".weight", ".bias"))}
    head = {f"network.{model.head}.{name}" for name in ("weight", "bias")}
    groups = {
        "all": names,
        "weights": weights,
        "head": head,
        "body": weights - head,
        "norm": {f"{layer}.{name}" for layer, _ in model.norm_layers() for name in ("weight", "bias")},
    }
    found = [groups[part] for part in parts.split() if part in groups]
    return {f"model.{name}" for name in set().union(*found)}


@pytest.mark.parametrize("kind", ["vit", "cnn"])
@pytest.mark.parametrize(("method", "options", "parts"), MOVING, ids=str)
def test_these_parameters_move(
    method: str, options: Options, parts: str, kind: str, request: pytest.FixtureRequest
) -> None:
    model: VisionModel = request.getfixturevalue(kind)
    if kind == "cnn" and method not in ("actmad", "cotta", "pseudo_label", "roid", "rotta", "tent", "vdp"):
        pytest.skip("one network is enough")
    rates = {
        key: 1e-2 for key in ("learning_rate", "adapter_learning_rate") if hasattr(find_method(method).Settings, key)
    }
    adapter = adapt(model, method, **rates, **options)
    if adapter.awaits_source:
        adapter.warm_up((images, torch.arange(6)) for images in stream(adapter, 2, 6, seed=1))
    before = {name: value.detach().clone() for name, value in adapter.named_parameters()}
    for images in stream(adapter):
        adapter(images)
    moved = {name for name, value in adapter.named_parameters() if not torch.equal(value, before[name])}
    mine = {name for name in moved if not name.startswith("teacher")}
    assert mine == adapter.trainable().keys()
    own = {name for name in mine if name.startswith("model.") and not name.startswith("model.parts.")}
    assert own == expected(model, parts)
    others = {"parts" if name.startswith("model.") else name.partition(".")[0] for name in mine - own}
    assert others == set(parts.split()) - {"all", "weights", "head", "body", "norm"}


@pytest.mark.parametrize(
    ("method", "options", "values"),
    [
        ("deyo", {}, 27_648),
        ("rem", {}, 27_648),
        ("rem", {"final_norm": True}, 29_184),
        ("sar", {}, 27_648),
        ("sar", {"fixed": 0.0}, 38_400),
        ("tent", {}, 38_400),
        ("vdp", {}, 1734),
    ],
    ids=str,
)
def test_values_that_learn_in_vit_base(vit_base: VisionModel, method: str, options: Options, values: int) -> None:
    adapter = adapt(vit_base, method, **options)
    assert sum(p.numel() for p in adapter.trainable().values()) == values
    if values == 27_648:  # all but the last three of twelve blocks, and the final norm
        layers = {int(name.split("layers.")[1].split(".")[0]) for name in adapter.trainable()}
        assert layers == set(range(9))


def test_weights_and_biases_of_vit_base(vit_base: VisionModel) -> None:
    fixed = 768 + (1 + 14 * 14) * 768  # class token and positions
    head = 2 * 769
    assert sum(p.numel() for p in weights_and_biases(vit_base)) == 85_646_592 + head
    assert sum(p.numel() for p in vit_base.parameters()) == 85_646_592 + head + fixed


@pytest.mark.parametrize(
    ("size", "experts", "values"), [("S", 4, 79_944 + 12_288), ("M", 6, 1_967_028 + 183_552), ("L", 6, 11_314_944)]
)
def test_experts_of_becotta_behind_segformer_b5(size: str, experts: int, values: int) -> None:
    model = segformer_b5()
    ranks = [rank for rank, depth in zip(RANKS[size], (3, 6, 40, 3), strict=True) for _ in range(depth)]
    add_experts(model, ranks, experts, 3, torch.Generator(), False)
    assert sum(p.numel() for p in added_layers(model).parameters()) == values


@pytest.mark.parametrize(("as_released", "values"), [(True, 3_469_312), (False, 1_953_792 + 4096)])
def test_meta_networks_of_ecotta_next_to_segformer_b5(as_released: bool, values: int) -> None:
    model = segformer_b5()
    add_to_segformer(model, torch.Generator(), as_released)
    assert sum(p.numel() for p in added_layers(model).parameters()) == values
