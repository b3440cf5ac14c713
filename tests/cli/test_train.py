import json
from pathlib import Path
from typing import Any

import pytest
import torch

from testdg.cli.app import execute
from testdg.models import TinyCNN, load_model
from testdg.runs.training.recipe import ClassTuning

SMALL = ["--images", "40", "--epochs", "1", "--batch-size", "20", "--device", "cpu"]


@pytest.fixture
def arguments(tmp_path: Path) -> list[str]:
    torch.manual_seed(0)
    load_model(TinyCNN(classes=7, width=4)).save(tmp_path / "cnn")
    places = ["--model", str(tmp_path / "cnn"), "--out", str(tmp_path / "out")]
    return ["train", "--benchmark", "digits-c", *places, *SMALL]


def test_train_writes_a_model_that_runs(
    arguments: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert execute(arguments) == 0
    lines = capsys.readouterr().out.splitlines()
    about = json.loads((tmp_path / "out" / "training.json").read_text())
    assert lines[0].startswith("100 %  step 2 of 2, loss ")
    assert lines[-1] == f"error  {about['clean_error']:.2f} % on 797 clean test images of digits-c"
    assert about["recipe"]["images"] == 40
    run = ["run", "--model", str(tmp_path / "out"), "--out", str(tmp_path / "runs"), "--method", "source"]
    assert execute([*run, "--images", "4", "--domains", "fog", "--device", "cpu"]) == 0


def test_json_and_the_second_time(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert execute([*arguments, "--json"]) == 0
    first = capsys.readouterr().out
    assert json.loads(first)["benchmark"] == "digits-c"
    assert execute([*arguments, "--json"]) == 0
    assert capsys.readouterr().out == first  # seconds included: nothing was trained again


def test_the_defaults_are_those_of_the_library(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    recipes: list[ClassTuning] = []

    def record(*values: Any, **_: Any) -> None:
        recipes.append(values[3])
        raise KeyboardInterrupt

    monkeypatch.setattr("testdg.cli.prepare.fine_tune", record)
    assert execute(["train", "--benchmark", "digits-c", "--model", "tiny", "--out", str(tmp_path / "out")]) == 130
    assert recipes == [ClassTuning()]
