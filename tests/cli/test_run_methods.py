"""Several methods in one run, and the source images that some of them measure."""

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from support.commands import refuses
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
    refuses(capsys, [*arguments, "--method", "tent,t3a", "--set", wrong], wrong, "tent, t3a")


def test_the_source_can_be_a_folder(
    arguments: list[str], shared_cache: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = pictures(tmp_path / "clean", 70, sizes=(40, 40, 33))
    assert execute([*arguments, "--method", "align", "--source", str(folder), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["protocol"]["tuning"] == f"the method's preset for digits-c; source images of {folder}"
    assert found["source"] == str(folder)
    assert execute([*arguments, "--method", "tent,align", "--source", str(folder), "--json"]) == 0
    tent = next(run for run in json.loads(capsys.readouterr().out) if run["method"]["name"] == "tent")
    assert "source" not in tent
    refuses(capsys, [*arguments, "--method", "tent", "--source", folder], "--source")


def test_too_few_source_images_are_refused_with_the_number(
    arguments: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = pictures(tmp_path / "clean", 63)
    refuses(capsys, [*arguments, "--method", "align", "--source", folder], folder, 63, "align", 64)


def test_a_source_folder_that_does_not_exist_is_refused(
    arguments: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    refuses(capsys, [*arguments, "--method", "align", "--source", tmp_path / "nowhere"], tmp_path / "nowhere")


def test_an_alignment_to_the_stream_is_in_the_record(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    chosen = ["--method", "align", "--set", "sketch=stream", "--set", "source_images=64", "--json"]
    assert execute([*arguments, *chosen]) == 0
    tuning = json.loads(capsys.readouterr().out)["protocol"]["tuning"]
    assert tuning.endswith("aligned to the first 64 images of the stream, not to the source")


def test_a_guard_of_source_alone_is_refused(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    refuses(capsys, [*arguments, "--method", "source", "--guard"], "--guard", "source")
