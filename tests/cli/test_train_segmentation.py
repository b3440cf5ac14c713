"""`testdg train` on pictures with label maps."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from support.commands import refuses
from testdg.cli.app import execute


def write(path: Path, seed: int, size: tuple[int, int] = (64, 48), classes: int = 0) -> None:
    """A picture of random pixels, or a label map with numbers below `classes`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    random = np.random.default_rng(seed)
    shape = size[::-1] if classes else (*size[::-1], 3)
    Image.fromarray(random.integers(0, classes or 256, shape, dtype=np.uint8)).save(path)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Four pictures for training and two for the test, as CamVid keeps them."""
    for split, count in (("train", 4), ("test", 2)):
        for number in range(count):
            write(tmp_path / "data" / split / f"{number}.png", number)
            write(tmp_path / "data" / f"{split}annot" / f"{number}.png", number, classes=12)
    return tmp_path / "data"


@pytest.fixture
def arguments(data: Path, tmp_path: Path) -> list[str]:
    chosen = ["--benchmark", "folder-weather", "--data", str(data), "--model", "tiny", "--out", str(tmp_path / "out")]
    return ["train", *chosen, "--epochs", "1", "--batch-size", "2", "--device", "cpu"]


def test_train_writes_a_model_that_runs(
    arguments: list[str], data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert execute([*arguments, "--head-rate", "2", "--scale-from", "1", "--overlap", "0"]) == 0
    lines = capsys.readouterr().out.splitlines()
    about = json.loads((tmp_path / "out" / "training.json").read_text())
    assert lines[0].startswith("100 %  step 2 of 2, loss ")
    assert lines[-1] == f"mIoU   {about['clean_miou']:.2f} % on 2 clean test images of folder-weather"
    assert (about["recipe"]["head_rate"], about["recipe"]["scale_to"], about["recipe"]["overlap"]) == (2.0, 2.0, 0.0)
    assert list(about["clean_class_iou"])[:2] == ["sky", "building"]
    run = ["run", "--benchmark", "folder-weather", "--data", str(data), "--model", str(tmp_path / "out")]
    assert execute([*run, "--out", str(tmp_path / "runs"), "--method", "source", "--domains", "fog"]) == 0
    other = ["run", "--benchmark", "streets", "--model", str(tmp_path / "out"), "--out", str(tmp_path / "runs")]
    refuses(capsys, [*other, "--images", "1"], "out", 11, "streets", 9)


def test_train_takes_a_subset_of_the_pictures(
    arguments: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert execute([*arguments, "--subset", "first:2"]) == 0
    assert json.loads((tmp_path / "out" / "training.json").read_text())["training_images"] == 2
    streets = ["train", "--benchmark", "streets", "--model", "tiny", "--out", "none", "--subset", "first:2"]
    refuses(capsys, streets, "streets", "subset")


def without_maps(data: Path) -> None:
    (data / "trainannot").rename(data / "labels")


def without_one_map(data: Path) -> None:
    (data / "trainannot" / "2.png").unlink()


def with_a_small_map(data: Path) -> None:
    write(data / "trainannot" / "1.png", 0, (32, 48), classes=11)


def with_a_strange_number(data: Path) -> None:
    write(data / "trainannot" / "3.png", 0, classes=200)


@pytest.mark.parametrize(
    ("spoil", "values"),
    [
        (without_maps, ("data", "train/ and trainannot/")),
        (without_one_map, ("2.png",)),
        (with_a_small_map, ("1.png", "32 x 48", "64 x 48")),
        (with_a_strange_number, ("3.png", "0 to 10")),
    ],
)
def test_bad_data_is_refused_and_nothing_is_written(
    spoil: Callable[[Path], None], values: tuple[str, ...], arguments: list[str], data: Path, tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    spoil(data)
    refuses(capsys, arguments, *values)
    assert [path.name for path in tmp_path.iterdir()] == ["data"]


@pytest.mark.parametrize(
    ("more", "values"),
    [
        (["--image-size", "32"], ("segmentation", "--image-size")),
        (["--scale-to", "0.2"], ("scale_to", "0.5 to 0.2")),
        (["--balance", "2"], ("balance", "got 2.0")),
    ],
)
def test_mistakes_are_refused_before_the_data_are_read(
    more: list[str], values: tuple[str, ...], arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    refuses(capsys, [*arguments, *more, "--data", "nowhere"], *values)
