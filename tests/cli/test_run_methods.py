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


@pytest.mark.parametrize(
    ("options", "found"),
    [
        ("--method tent,source", {"tent": 1, "source": None}),
        ("--method tent,tent --set steps=2", {"tent": 2}),
        ("--method tent,align --set tent.steps=2", {"tent": 2, "align": None}),
    ],
)
def test_every_method_runs_once_with_its_own_settings(
    options: str, found: dict[str, int | None], arguments: list[str], shared_cache: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    assert execute([*arguments, *options.split(), "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    methods = [one["method"] for one in (shown if isinstance(shown, list) else [shown])]
    assert {method["name"]: method["settings"].get("steps") for method in methods} == found


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


def test_a_source_folder_that_does_not_suffice_is_refused(
    arguments: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    few, nowhere = pictures(tmp_path / "clean", 63), tmp_path / "nowhere"
    refuses(capsys, [*arguments, "--method", "align", "--source", few], few, 63, "align", 64)
    refuses(capsys, [*arguments, "--method", "align", "--source", nowhere], nowhere)


def test_an_alignment_to_the_stream_is_in_the_record(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    chosen = ["--method", "align", "--set", "sketch=stream", "--set", "source_images=64", "--json"]
    assert execute([*arguments, *chosen]) == 0
    tuning = json.loads(capsys.readouterr().out)["protocol"]["tuning"]
    assert tuning.endswith("aligned to the first 64 images of the stream, not to the source")
