"""`testdg run` on image files."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from support.commands import refuses
from testdg.cli.app import execute
from testdg.models import Preprocessing, TinyViT, VisionModel


@pytest.fixture
def arguments(tmp_path: Path) -> list[str]:
    """Two classes of three images under fog, the first of which is no picture; a random model of 224 px."""
    for number in range(6):
        path = tmp_path / "ImageNet-C" / "fog" / "5" / f"n0{number % 2}" / f"{number}.JPEG"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.full((224, 224, 3), 40 * number, np.uint8)).save(path)
    (tmp_path / "ImageNet-C" / "fog" / "5" / "n00" / "0.JPEG").write_bytes(b"no picture")
    torch.manual_seed(0)
    network = TinyViT(2, 224, patch=32, width=16, depth=1, heads=2)
    VisionModel(network, "head", Preprocessing((224, 224), mean=(0.5,) * 3, std=(0.5,) * 3), "m").save(tmp_path / "m")
    places = ["--data", str(tmp_path), "--model", str(tmp_path / "m"), "--out", str(tmp_path / "runs")]
    return ["run", "--benchmark", "imagenet-c", "--method", "source", "--domains", "fog", "--device", "cpu", *places]


def test_a_subset_in_the_papers_input(arguments: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "ids.txt").write_text("n01/5.JPEG\nn00/2.JPEG\n")
    chosen = ["--subset", str(tmp_path / "ids.txt"), "--preprocessing", "paper", "--json"]
    assert execute([*arguments, *chosen]) == 0
    about = json.loads(capsys.readouterr().out)["protocol"]
    assert about["images_per_domain"] == 2
    assert about["data"] == "published ImageNet-C; subset ids.txt; 2 classes by the folders"
    assert (about["preprocessing"]["size"], about["preprocessing"]["crop"]) == (256, [224, 224])
    assert (about["preprocessing"]["mean"], about["preprocessing"]["std"]) == ([0, 0, 0], [1, 1, 1])


def test_unreadable_files_end_the_run_or_are_counted(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    refuses(capsys, arguments, "0.JPEG")
    assert execute([*arguments, "--skip-unreadable", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["skipped"], found["protocol"]["images_per_domain"]) == (1, 5)
