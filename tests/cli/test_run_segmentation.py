"""`testdg run` on a benchmark of pixels."""

import json
from pathlib import Path

import pytest
import torch
from PIL import Image

from support.commands import refuses
from testdg.cli.app import execute
from testdg.models import Preprocessing, load_model
from testdg.models.segformer import tiny_segformer


@pytest.fixture
def arguments(tmp_path: Path) -> list[str]:
    torch.manual_seed(0)
    model = load_model(tiny_segformer(9), preprocessing=Preprocessing(mean=(0.5,) * 3, std=(0.25,) * 3))
    model.save(tmp_path / "model")
    chosen = ["--benchmark", "streets", "--model", str(tmp_path / "model"), "--images", "2", "--domains", "fog,night"]
    return ["run", *chosen, "--method", "tent", "--device", "cpu", "--out", str(tmp_path / "runs")]


def test_miou_per_round_and_domain_a_figure_and_a_panel(
    arguments: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert execute(arguments) == 0
    shown = capsys.readouterr().out
    lines = shown.splitlines()
    assert "cyclic: 2 domains in order, 3 rounds" in shown
    assert any(line.split() == ["mIoU,", "%", "Source", "TENT", "gain"] for line in lines)
    assert any(line.startswith("TENT, mIoU, %  round 1  round 2  round 3") for line in lines)
    assert sum(line.startswith("  night, round") for line in lines) == 6
    assert any(line.startswith("sky ") for line in lines)
    (folder,) = (tmp_path / "runs").glob("streets-tent-*")
    for name in ("figure.png", "panel.png"):
        assert str(folder / name) in shown
        with Image.open(folder / name) as picture:
            picture.verify()
    (folder / "panel.png").unlink()
    for file in (folder / "state").iterdir():
        file.unlink()
    (folder / "state").rmdir()
    assert execute(arguments) == 0  # the adapted weights were deleted: everything but the panel is shown
    assert "panel" not in capsys.readouterr().out


def test_a_guarded_run_has_a_panel_too(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert execute([*arguments, "--guard", "--protocol", "cyclic,rounds=1"]) == 0
    assert "panel.png" in capsys.readouterr().out


def test_the_json_has_every_visit_and_every_class(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert execute([*arguments, "--protocol", "cyclic,rounds=2", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [(d["name"], d["round"]) for d in found["domains"]] == [
        ("fog", 1), ("night", 1), ("fog", 2), ("night", 2),
    ]  # fmt: skip
    first = found["domains"][0]
    known = [value for value in first["class_iou"] if value is not None]
    assert first["miou"] == pytest.approx(sum(known) / len(known))
    assert len(found["classes"]) == len(first["class_iou"]) == 9
    assert found["means"]["miou"] == pytest.approx(sum(d["miou"] for d in found["domains"]) / 4)


def test_each_domain_is_left_out_once(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert execute([*arguments, "--protocol", "leave-one-out"]) == 0
    shown = capsys.readouterr().out
    assert "runs       2, one for each domain" in shown
    rows = [line.split() for line in shown.partition("left out, mIoU, %")[2].splitlines()[1:4]]
    assert [row[0] for row in rows] == ["fog", "night", "mean"]
    assert execute([*arguments, "--protocol", "leave-one-out", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [[d["name"] for d in one["held_out"]] for one in found["runs"]] == [["fog"], ["night"]]
    assert [[d["name"] for d in one["domains"]] for one in found["runs"]] == [["night"], ["fog"]]
    tested = [one["held_out_means"]["miou"] for one in found["runs"]]
    assert found["mean_miou"] == pytest.approx(sum(tested) / 2)


@pytest.mark.parametrize(
    ("more", "values"),
    [
        (["--protocol", "leave-one-out,held_out=snow"], ("'snow'", "fog, night")),
        (["--protocol", "dirichlet"], ("dirichlet", "streets", "segmentation")),
        (["--method", "eata"], ("eata", "classification")),
        (["--benchmark", "digits-c", "--domains", "fog"], ("segmentation", "digits-c", "classification")),
    ],
)
def test_mistakes_are_refused(
    arguments: list[str], more: list[str], values: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    refuses(capsys, [*arguments, *more], *values)
