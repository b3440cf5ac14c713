"""Weights of own modules, files of tensors and published checkpoints find their network."""

import json
import pickle
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from support.errors import refused
from testdg import Preprocessing, adapt, load_model
from testdg.cli.app import execute
from testdg.models import TinyViT
from testdg.models.checkpoints import read_checkpoint
from testdg.models.loading import convert
from testdg.models.timm_models import misfit

IMAGES = torch.rand(4, 3, 32, 32, generator=torch.Generator().manual_seed(0))
SIZED = Preprocessing((32, 32), mean=(0.5,) * 3, std=(0.25,) * 3)


class MyNet(nn.Module):
    """A network that this package knows nothing of."""

    def __init__(self, classes: int = 3) -> None:
        super().__init__()
        self.body, self.norm = nn.Conv2d(3, 4, 3, 2), nn.BatchNorm2d(4)
        self.fc, self.auxiliary = nn.Linear(4, classes), nn.Linear(4, 2)

    def forward(self, images: Tensor) -> Tensor:
        return self.fc(self.norm(self.body(images)).relu().mean((2, 3)))  # type: ignore[no-any-return]


def test_what_export_wrote_of_an_own_module_is_opened_with_it(tmp_path: Path) -> None:
    adapter = adapt(MyNet(), "testdg", batch_norm="source", preprocessing=SIZED, classes=["ant", "bee", "cat"])
    adapter(IMAGES)
    adapter.export(tmp_path / "mine")
    given = MyNet()
    before = {name: value.clone() for name, value in given.state_dict().items()}
    again = load_model(tmp_path / "mine", module=given)
    torch.testing.assert_close(again(again.prepare(IMAGES)).logits, adapter.predict(IMAGES))
    assert (again.preprocessing, again.class_names, again.head) == (SIZED, ("ant", "bee", "cat"), "fc")
    assert all(torch.equal(value, before[name]) for name, value in given.state_dict().items())
    with refused("no-network", "MyNet", "load_model"):
        load_model(tmp_path / "mine")
    with refused("wrong-weights", "MyNet", "fc.bias", "(3,)", "(5,)"):
        load_model(tmp_path / "mine", module=MyNet(classes=5))


def layouts(weights: dict[str, Tensor]) -> dict[str, Any]:
    def before(prefix: str) -> dict[str, Tensor]:
        return {prefix + name: value for name, value in weights.items()}

    return {
        "plain": weights,
        "parallel": {"model": before("module."), "epoch": 3},
        "state_dict": {"state_dict": before("model."), "optimizer": {"lr": 0.1}},
        "both": {"model_state_dict": before("model.module.")},
        "compiled": before("_orig_mod."),
    }


@pytest.mark.parametrize("layout", ["plain", "parallel", "state_dict", "both", "compiled"])
@pytest.mark.parametrize("suffix", [".pt", ".pth"])
def test_files_of_tensors_go_into_a_module(layout: str, suffix: str, tmp_path: Path) -> None:
    network = MyNet()
    file = tmp_path / f"weights{suffix}"
    torch.save(layouts(network.state_dict())[layout], file)
    model = load_model(file, module=MyNet(), preprocessing=SIZED)
    assert model.fingerprint() == load_model(network, preprocessing=SIZED).fingerprint()
    assert model.name == "weights"


def test_a_checkpoint_may_contain_the_options_of_the_training(tmp_path: Path) -> None:
    weights, file = MyNet().state_dict(), tmp_path / "checkpoint.pth"
    torch.save({"model": weights, "args": Namespace(lr=0.1, data_path="somewhere"), "epoch": 3}, file)
    assert read_checkpoint(file).keys() == weights.keys()


def test_weights_and_modules_without_preprocessing_are_warned_about(tmp_path: Path) -> None:
    file = tmp_path / "weights.pth"
    torch.save(MyNet().state_dict(), file)
    with pytest.warns(UserWarning, match="weights") as caught:
        load_model(file, module=MyNet())
    with pytest.warns(UserWarning, match="MyNet") as of_module:
        load_model(MyNet())
    assert caught[0].filename == of_module[0].filename == __file__


class Harmful:
    def __reduce__(self) -> Any:
        return print, ("executed",)


def test_nothing_in_a_file_is_executed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    whole, harmful, empty, broken = (tmp_path / f"{name}.pth" for name in ("whole", "harmful", "empty", "broken"))
    torch.save(MyNet(), whole)
    harmful.write_bytes(pickle.dumps({"fc.weight": Harmful()}))
    torch.save({"epoch": 3}, empty)
    broken.write_bytes(whole.read_bytes()[:200])
    for file in (whole, harmful):
        with refused("unsafe-pickle", "state_dict"):
            read_checkpoint(file)
    with refused("no-weights", "empty"):
        read_checkpoint(empty)
    with refused("damaged-model", "broken"):
        read_checkpoint(broken)
    assert "executed" not in capsys.readouterr().out


def tiny(folder: Path, classes: int = 4) -> TinyViT:
    torch.manual_seed(1)
    network = TinyViT(classes, width=16, depth=2, patch=8).eval()
    load_model(network, preprocessing=SIZED).save(folder)
    return network


def published(network: TinyViT) -> dict[str, Tensor]:
    """Weights as the field's repositories save them: wrapped twice, attention layers with branches inside."""
    weights = {}
    for name, value in network.state_dict().items():
        layer, _, own = name.rpartition(".")
        wrapped = f"{layer}.linear_vida.{own}" if ".attention.qkv" in name else name
        weights[f"module.{wrapped}"] = value
        if wrapped != name and own == "weight":
            weights[f"module.{layer}.vida_down.weight"] = torch.randn(2, value.shape[1])
            weights[f"module.{layer}.vida_up.weight"] = torch.zeros(value.shape[0], 2)
    return weights


def test_a_published_checkpoint_becomes_a_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = TinyViT(7, width=16, depth=2, patch=8).eval()  # of the same kind, for other classes
    tiny(tmp_path / "like")
    file, out = tmp_path / "published.pth", tmp_path / "converted"
    torch.save({"model": {**published(other), "mu": torch.zeros(3)}}, file)
    assert execute(["convert", str(file), "--like", str(tmp_path / "like"), "--out", str(out)]) == 0
    output = capsys.readouterr().out
    assert "7 classes" in output
    assert "branches.safetensors" in output
    assert "mu" in output
    model = load_model(out)
    torch.testing.assert_close(model(IMAGES).logits, other(model.normalise(IMAGES)))
    assert set(load_file(out / "branches.safetensors")) == {
        f"blocks.{k}.attention.qkv.vida_{part}.weight" for k in range(2) for part in ("down", "up")
    }
    assert execute(["convert", str(file), "--like", str(tmp_path / "like"), "--out", str(out)]) == 2
    assert str(out) in capsys.readouterr().err


def test_weights_that_do_not_fit_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    network, file, out = tiny(tmp_path / "like"), tmp_path / "file.pth", str(tmp_path / "out")
    weights = network.state_dict()
    del weights["norm.weight"]
    torch.save(weights, file)
    assert execute(["convert", str(file), "--like", str(tmp_path / "like"), "--out", out, "--json"]) == 2
    assert "norm.weight" in capsys.readouterr().err
    assert execute(["convert", str(file), "--out", out]) == 2
    assert "--timm" in capsys.readouterr().err
    torch.save(network.state_dict(), file)
    assert execute(["convert", str(file), "--like", str(tmp_path / "like"), "--out", out, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["unknown"] == []


UNUSUAL: dict[str, Callable[[Tensor], Tensor]] = {
    "quantised": lambda value: torch.quantize_per_tensor(value, 0.1, 0, torch.qint8),
    "sparse": lambda value: value.to_sparse(),
    "complex": lambda value: value.to(torch.complex64),
    "without data": lambda value: value.to("meta"),
}


@pytest.mark.filterwarnings("ignore::UserWarning")  # torch on quantised tensors
@pytest.mark.parametrize("kind", UNUSUAL)
def test_tensors_that_are_not_dense_real_numbers_are_refused(kind: str, tmp_path: Path) -> None:
    file = tmp_path / "unusual.pth"
    torch.save({"fc.weight": UNUSUAL[kind](torch.ones(3, 4))}, file)
    with refused("wrong-weights", "fc.weight", kind):
        read_checkpoint(file)


def test_complex_tensors_of_safetensors_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "complex.safetensors"
    save_file({"fc.weight": torch.ones(3, 4, dtype=torch.complex64)}, file)
    with refused("wrong-weights", "fc.weight", "complex"):
        read_checkpoint(file)


def test_weights_that_are_not_finite_are_not_converted(tmp_path: Path) -> None:
    network, file = tiny(tmp_path / "like"), tmp_path / "nan.pth"
    torch.save({name: value * float("nan") for name, value in network.state_dict().items()}, file)
    with refused("damaged-model", str(file)):
        convert(file, tmp_path / "out", like=str(tmp_path / "like"))
    assert not (tmp_path / "out").exists()


def test_a_file_of_tensors_as_a_model_points_to_convert(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "weights.pt"
    torch.save(MyNet().state_dict(), file)
    assert execute(["run", "--model", str(file), "--out", str(tmp_path / "runs")]) == 2
    assert f"testdg convert {file}" in capsys.readouterr().err
    with refused("no-such-file", "nowhere.pt"):
        load_model(tmp_path / "nowhere.pt")


def test_a_torchvision_for_another_torch_is_named() -> None:
    message = misfit("timm:x needs timm", RuntimeError("operator torchvision::nms does not exist"))
    assert message.startswith("timm:x needs timm")
    assert torch.__version__ in message
