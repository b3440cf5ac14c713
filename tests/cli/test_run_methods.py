"""Several methods in one run, and the source images that some of them measure."""

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from testdg.cli.app import execute

SMALL = ["--images", "24", "--domains", "fog,contrast", "--device", "cpu"]


@pytest.fixture
def arguments(model: Path, tmp_path: Path) -> list[str]:
    return ["run", "--model", str(model), "--out", str(tmp_path / "runs"), *SMALL]


def pictures(folder: Path, count: int, sizes: tuple[int, ...] = (40,)) -> Path:
    """Pictures of random colours, some of them in a folder of their own."""
    random = np.random.default_rng(0)
    (folder / "more").mkdir(parents=True)
    for number in range(count):
        side = sizes[number % len(sizes)]
        pixels = random.integers(0, 256, (side, side, 3), dtype=np.uint8)
        place = folder / "more" if number % 2 else folder
        Image.fromarray(pixels).save(place / f"{number:03}.png")
    return folder


def test_the_default_is_aligned(arguments: list[str], shared_cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert execute([*arguments, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["method"]["name"] == "testdg_aligned"


def test_methods_stand_side_by_side(
    arguments: list[str], shared_cache: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert execute([*arguments, "--method", "tent, align"]) == 0
    lines = capsys.readouterr().out.splitlines()
    title = next(line for line in lines if line.startswith("error, %"))
    assert title.split() == ["error,", "%", "Source", "TENT", "Align", "gain"]
    assert sum(line.startswith("run     ") for line in lines) == 2
    for name in ("source", "tent", "align"):
        assert len(list((tmp_path / "runs").glob(f"digits-c-{name}-*"))) == 1


def test_source_among_the_methods_runs_once(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert execute([*arguments, "--method", "tent,source", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [result["method"]["name"] for result in found] == ["tent", "source"]


def test_a_setting_names_its_method(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    several = [*arguments, "--method", "tent,t3a", "--json"]
    assert execute([*several, "--set", "tent.steps=2", "--set", "t3a.supports=3"]) == 0
    tent, t3a = json.loads(capsys.readouterr().out)
    assert (tent["method"]["settings"]["steps"], t3a["method"]["settings"]["supports"]) == (2, 3)


def test_a_method_that_is_named_twice_runs_once(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert execute([*arguments, "--method", "tent,tent", "--set", "steps=2", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["method"]["settings"]["steps"] == 2


@pytest.mark.parametrize("wrong", ["steps=2", "eata.margin=0.4"])
def test_a_setting_of_no_method_is_refused(
    arguments: list[str], wrong: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert execute([*arguments, "--method", "tent,t3a", "--set", wrong]) == 2
    assert f"--set {wrong} names none of the methods tent, t3a" in capsys.readouterr().err


def test_the_source_can_be_a_folder(
    arguments: list[str], shared_cache: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = pictures(tmp_path / "clean", 70, sizes=(40, 40, 33))
    assert execute([*arguments, "--method", "align", "--source", str(folder), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["protocol"]["tuning"] == f"the method's defaults; source images of {folder}"
    assert found["source"] == str(folder)
    assert execute([*arguments, "--method", "tent,align", "--source", str(folder), "--json"]) == 0
    tent = next(run for run in json.loads(capsys.readouterr().out) if run["method"]["name"] == "tent")
    assert "source" not in tent
    assert execute([*arguments, "--method", "tent", "--source", str(folder)]) == 2
    assert "--source) is for methods that measure clean images" in capsys.readouterr().err


def test_too_few_source_images_are_refused_with_the_number(
    arguments: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = pictures(tmp_path / "clean", 63)
    assert execute([*arguments, "--method", "align", "--source", str(folder)]) == 2
    assert f"{folder} holds 63 images; align needs at least 64 of the source" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("method", "told"), [("align", "is not a folder"), ("vida", "labelled source images, which --source cannot give")]
)
def test_a_source_that_cannot_serve_is_refused(
    arguments: list[str], tmp_path: Path, method: str, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    wanted = ["--method", method, "--preset", "none", "--source", str(tmp_path / "nowhere")]
    assert execute([*arguments, *wanted]) == 2
    assert told in capsys.readouterr().err


def test_the_stream_in_place_of_the_source_is_told(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    chosen = ["--method", "align", "--set", "sketch=stream", "--set", "source_images=64", "--json"]
    assert execute([*arguments, *chosen]) == 0
    tuning = json.loads(capsys.readouterr().out)["protocol"]["tuning"]
    assert tuning.endswith("aligned to the first 64 images of the stream, not to the source")


def test_a_guard_of_source_alone_is_refused(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert execute([*arguments, "--method", "source", "--guard"]) == 2
    assert "--guard watches what a method learns, and source learns nothing" in capsys.readouterr().err
