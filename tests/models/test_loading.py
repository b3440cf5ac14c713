"""`load_model`: what comes out is the network itself, whatever it was loaded from."""

import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from support.errors import refused
from testdg.models import Preprocessing, TinyCNN, TinyViT, VisionModel, hub, load_model

MakeFolder = Callable[[str], tuple[Path, Any]]


def images(size: int = 32) -> Tensor:
    return torch.rand(3, 3, size, size, generator=torch.Generator().manual_seed(0))


def normalised(levels: Tensor) -> Tensor:
    mean, std = (torch.tensor(v).view(3, 1, 1) for v in ((0.4, 0.5, 0.6), (0.2, 0.3, 0.4)))
    return (levels - mean) / std


@torch.no_grad()
@pytest.mark.parametrize("kind", ["vit", "dinov2", "segformer-classifier"])
def test_logits_and_features_of_a_classifier_are_the_networks_own(kind: str, make_folder: MakeFolder) -> None:
    folder, network = make_folder(kind)
    model = load_model(folder)
    logits, features = model(images())
    torch.testing.assert_close(logits, network(normalised(images())).logits)
    torch.testing.assert_close(F.linear(features, network.classifier.weight, network.classifier.bias), logits)
    assert (model.task, model.classes, model.name) == ("classification", 5, kind)
    assert features.shape == (3, model.feature_size)
    assert not model.training


@torch.no_grad()
def test_features_of_a_vit_are_its_class_token(make_folder: MakeFolder) -> None:
    folder, network = make_folder("vit")
    token = network.vit(normalised(images())).last_hidden_state[:, 0]
    torch.testing.assert_close(load_model(folder)(images()).features, token)


@torch.no_grad()
def test_features_of_dinov2_are_class_token_and_mean_patch(make_folder: MakeFolder) -> None:
    folder, network = make_folder("dinov2")
    tokens = network.dinov2(normalised(images())).last_hidden_state
    expected = torch.cat([tokens[:, 0], tokens[:, 1:].mean(1)], 1)
    torch.testing.assert_close(load_model(folder)(images()).features, expected)


def test_the_preprocessor_travels_with_the_weights_unless_another_is_given(make_folder: MakeFolder) -> None:
    folder, _ = make_folder("vit")
    assert load_model(folder).preprocessing.resample == "bicubic"
    other = Preprocessing((32, 32))
    assert load_model(folder, preprocessing=other).preprocessing == other
    (folder / "preprocessor_config.json").unlink()
    assert load_model(folder).preprocessing == Preprocessing((32, 32), mean=(0.5,) * 3, std=(0.5,) * 3)


def test_half_precision_weights_are_loaded_in_single_precision(make_folder: MakeFolder) -> None:
    folder, network = make_folder("vit")
    network.half().save_pretrained(folder)
    assert {value.dtype for value in load_model(folder).parameters()} == {torch.float32}


def test_a_module_without_a_linear_layer_that_no_image_passes_is_refused() -> None:
    with refused("bad-network", "Sequential", "head="):
        load_model(nn.Sequential(nn.Conv2d(4, 5, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten()))
    assert load_model(nn.Sequential(nn.Conv2d(3, 5, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten())).head is None


def test_a_network_that_gives_no_logits_is_refused() -> None:
    class Talkative(nn.Linear):
        def forward(self, x: Tensor) -> Any:
            return {"answer": super().forward(x.flatten(1))}

    with refused("bad-network", "dict"):
        load_model(nn.Sequential(Talkative(192, 5)))(images(8))


def test_a_model_is_taken_as_it_is() -> None:
    model = load_model(TinyCNN())
    assert load_model(model) is model


def test_a_folder_without_weights_is_refused(tmp_path: Path) -> None:
    with refused("no-weights", "model.safetensors"):
        load_model(tmp_path)
    (tmp_path / "pytorch_model.bin").write_bytes(b"")
    with refused("pickled-weights", "pytorch_model.bin", "model.safetensors"):
        load_model(tmp_path)


def test_weights_that_do_not_fit_are_refused(make_folder: MakeFolder, tmp_path: Path) -> None:
    folder, _ = make_folder("vit")
    weights = load_file(folder / "model.safetensors")
    save_file({**weights, "classifier.weight": torch.zeros(9, 16)}, folder / "model.safetensors", {"format": "pt"})
    with refused("bad-config"):
        load_model(folder)
    del weights["classifier.weight"]
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    with refused("wrong-weights", "1", "classifier.weight"):
        load_model(folder)
    load_model(TinyViT(width=16, depth=1)).save(tmp_path / "tiny")
    load_model(TinyViT(width=16, depth=2)).save(tmp_path / "deeper")
    (tmp_path / "deeper" / "config.json").replace(tmp_path / "tiny" / "config.json")
    with refused("wrong-weights", "model.safetensors", "config.json"):
        load_model(tmp_path / "tiny")


@pytest.mark.parametrize("name", ["./nowhere", "no/such/folder", "/nowhere", "models/nowhere", "~/nowhere", "models/"])
def test_a_folder_that_does_not_exist_is_called_that(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    if name == "models/nowhere":
        (tmp_path / "models").mkdir()
    with refused("no-such-file", name):
        load_model(name)


def test_an_unreachable_hub_is_refused_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as closed:  # bound, so that no other process has the port, and silent
        closed.bind(("127.0.0.1", 0))
        for key in ("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"):
            monkeypatch.delenv(key, raising=False)
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{closed.getsockname()[1]}")
        assert not hub.reachable()
        with refused("no-model", "nobody/nothing"):
            load_model("nobody/nothing")
        closed.listen()
        assert hub.reachable()


@torch.no_grad()
@pytest.mark.parametrize("kind", ["vit", "dinov2", "segformer", "tiny-vit", "tiny-cnn"])
def test_a_saved_model_is_loaded_back(kind: str, make_folder: MakeFolder, tmp_path: Path) -> None:
    torch.manual_seed(0)
    tiny = {"tiny-vit": TinyViT(classes=5, width=16, depth=1), "tiny-cnn": TinyCNN(classes=5, width=4)}
    preprocessing = Preprocessing((32, 32), resample="bicubic", mean=(0.1,) * 3, std=(0.3,) * 3)
    model = load_model(tiny.get(kind) or make_folder(kind)[0], preprocessing=preprocessing)
    next(model.parameters()).mul_(1.5)
    model.save(tmp_path / "saved")
    again = load_model(tmp_path / "saved")
    assert again.fingerprint() == model.fingerprint()
    assert again.preprocessing == preprocessing
    assert torch.equal(again(images()).logits, model(images()).logits)


def test_a_missing_timm_is_named() -> None:
    try:
        import timm  # noqa: F401
    except ImportError:
        with refused("not-installed", "vit_tiny", "testdg[timm]"):
            load_model("timm:vit_tiny")
    else:
        with refused("no-model", "no_such_model"):
            load_model("timm:no_such_model")


@torch.no_grad()
def test_a_timm_network_is_a_module_like_any_other() -> None:
    timm = pytest.importorskip("timm", exc_type=ImportError)
    network = timm.create_model("test_vit", num_classes=5).eval()
    from testdg.models.timm_models import preprocessing_of

    model = load_model(network, preprocessing=preprocessing_of(network))
    assert isinstance(model, VisionModel)
    prepared = model.prepare(images(200))
    torch.testing.assert_close(model(prepared).logits, network(model.normalise(prepared)))
    assert prepared.shape[-2:] == tuple(network.pretrained_cfg["input_size"][1:])


def test_a_file_for_a_network_of_timm_brings_its_number_of_classes(tmp_path: Path) -> None:
    timm = pytest.importorskip("timm", exc_type=ImportError)
    network = timm.create_model("test_vit", num_classes=5).eval()
    torch.save({"model": {f"module.{name}": value for name, value in network.state_dict().items()}}, tmp_path / "w.pth")
    model = load_model(tmp_path / "w.pth", module="timm:test_vit")
    images = torch.rand(2, 3, 160, 160)
    torch.testing.assert_close(model(images).logits, network(model.normalise(images)))
