"""SegFormers: maps of every stage, the attention of every stage, and what differs between implementations."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import transformers
from torch import nn

from support.errors import refused
from testdg.models import Preprocessing, SegmentationModel, load_model
from testdg.models.segformer import IMAGENET, SEGFORMERS, make_segformer, random_segformer, tiny_segformer
from testdg.models.transfer import with_classes

MakeFolder = Callable[[str], tuple[Path, Any]]


def test_logits_are_the_networks_own_enlarged_to_the_input(make_folder: MakeFolder) -> None:
    model = load_model(make_folder("segformer")[0], preprocessing=Preprocessing())
    assert (model.task, model.classes, model.feature_size) == ("segmentation", 5, 16)
    network: Any = model.network
    images = torch.rand(2, 3, 42, 70, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        found, small = model(images), network(images).logits
    assert small.shape == (2, 5, 11, 18)  # a quarter, rounded up
    assert found.logits.shape == (2, 5, 42, 70)
    torch.testing.assert_close(found.logits, F.interpolate(small, (42, 70), mode="bilinear", align_corners=False))


def test_every_stage_has_a_map_and_the_last_is_the_feature() -> None:
    model = load_model(tiny_segformer(9))
    assert isinstance(model, SegmentationModel)
    images = torch.rand(2, 3, 96, 160)
    with torch.no_grad():
        stages = model.stages(images)
        features = model(images).features
    assert [tuple(stage.shape[1:]) for stage in stages] == [(16, 24, 40), (32, 12, 20), (48, 6, 10), (64, 3, 5)]
    assert torch.equal(features, stages[-1])
    assert model.feature_size == 64


def test_blocks_and_stages_have_the_published_epsilon(make_folder: MakeFolder) -> None:
    model = load_model(make_folder("segformer")[0])
    found = {name: module.eps for name, module in model.norm_layers() if isinstance(module, nn.LayerNorm)}
    behind = [name for name in found if any(isinstance(m, nn.Conv2d) for m in _siblings(model, name))]
    assert {found[name] for name in behind} == {1e-5}
    assert {eps for name, eps in found.items() if name not in behind} == {1e-6}
    assert len(behind) == 4 + 3  # patch embeddings; reductions of the three stages that have one
    assert len(found) == len(behind) + 4 * 2 + 4  # two a block, one a stage


def _siblings(model: nn.Module, name: str) -> list[nn.Module]:
    return list(model.get_submodule(name.rpartition(".")[0]).children())


def test_a_module_of_the_user_is_not_changed() -> None:
    network = transformers.SegformerForSemanticSegmentation(transformers.SegformerConfig(depths=[1] * 4))
    load_model(network)
    assert {m.eps for m in network.modules() if isinstance(m, nn.LayerNorm)} == {1e-5}


def test_a_size_that_transformers_wrote_does_not_squeeze_street_scenes(make_folder: MakeFolder) -> None:
    folder, _ = make_folder("segformer")
    mean = [0.485, 0.456, 0.406]
    config = {"image_processor_type": "SegformerImageProcessor", "do_resize": True, "size": 512, "image_mean": mean}
    (folder / "preprocessor_config.json").write_text(json.dumps(config))
    found = load_model(folder).preprocessing
    assert (found.size, found.mean) == (None, tuple(mean))
    (folder / "preprocessor_config.json").unlink()
    assert load_model(folder).preprocessing == IMAGENET


def test_other_networks_for_segmentation_are_refused(tmp_path: Path) -> None:
    config = transformers.MobileViTConfig(
        num_labels=3, hidden_sizes=[8, 8, 8], neck_hidden_sizes=[8] * 7, image_size=32
    )
    transformers.MobileViTForSemanticSegmentation(config).save_pretrained(tmp_path / "other")
    with refused("wrong-task", "MobileViTForSemanticSegmentation", "SegFormers"):
        load_model(tmp_path / "other")


def test_the_largest_has_the_published_number_of_parameters() -> None:
    widths, depths, decoder = SEGFORMERS["segformer-b5"]
    with torch.device("meta"):
        network = make_segformer(19, hidden_sizes=widths, depths=depths, decoder_hidden_size=decoder)
    assert sum(parameter.numel() for parameter in network.parameters()) == 84_607_955


def test_random_segformers_have_the_published_size_and_a_signal_in_every_layer() -> None:
    state = torch.get_rng_state()
    model = random_segformer("segformer-b0", ["road", "sky", "car"], seed=1)
    assert torch.equal(torch.get_rng_state(), state)
    assert model.fingerprint() == random_segformer("segformer-b0", ["road", "sky", "car"], seed=1).fingerprint()
    encoder = model.network.get_submodule("segformer")
    assert sum(p.numel() for p in encoder.parameters()) == 3_319_392  # MiT-B0 without its classifier: 3.3 million
    assert (model.classes, model.preprocessing, model.training) == (3, IMAGENET, False)
    depthwise = [m for m in model.modules() if isinstance(m, nn.Conv2d) and m.groups > 1]
    for layer in depthwise:
        assert float(layer.weight.detach().std()) == pytest.approx((2 / 9) ** 0.5, rel=0.1)


@torch.no_grad()
def test_a_segformer_gets_other_classes(make_folder: MakeFolder, tmp_path: Path) -> None:
    model = load_model(make_folder("segformer")[0])
    changed = with_classes(model, ["road", "sky", "car"], seed=1)
    images = torch.rand(1, 3, 32, 64)
    assert changed(images).logits.shape == (1, 3, 32, 64)
    assert torch.equal(changed(images).features, model(images).features)
    changed.save(tmp_path / "new")
    again = load_model(tmp_path / "new")
    assert isinstance(again, SegmentationModel)
    torch.testing.assert_close(again(images).logits, changed.eval()(images).logits)
