import json
import pickle
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from support.errors import refused
from support.image_sets import (
    WNIDS,
    write_acdc,
    write_cityscapes,
    write_classes,
    write_folder,
    write_image,
    write_mask,
    write_stored,
)
from testdg.data import check as check_module
from testdg.data.check import Check, check_folder
from testdg.data.corruptions import EXTRA, STANDARD_ORDER

IMAGES = 3


def only(folder: Path) -> Check:
    (check,) = check_folder(folder)
    return check


@pytest.fixture
def arrays(tmp_path: Path) -> Path:
    """A small CIFAR-10-C as `testdg corrupt` makes it, without the extra corruptions."""
    folder = tmp_path / "CIFAR-10-C"
    folder.mkdir()
    for name in STANDARD_ORDER:
        np.save(folder / f"{name}.npy", np.zeros((5 * IMAGES, 32, 32, 3), np.uint8))
    np.save(folder / "labels.npy", np.tile(np.arange(IMAGES), 5))
    about = {"generator": "testdg", "version": "1", "seed": 0, "frost": "procedural", "images": IMAGES}
    (folder / "testdg-corrupt.json").write_text(json.dumps(about))
    return folder


def test_a_whole_set_is_fine(arrays: Path) -> None:
    for place in (arrays, arrays.parent):
        check = only(place)
        assert (check.name, check.folder, check.problems) == ("CIFAR-10-C", arrays, [])
        assert check.found == "15 corruptions, 5 severities, 3 images, made by testdg corrupt"
        assert check.notes == [f"missing: {', '.join(EXTRA)}; only tuning needs them"]
    (arrays / "testdg-corrupt.json").unlink()  # then the published size is expected
    assert f"{arrays / 'fog.npy'} has 15 images: expected 50000" in only(arrays).problems


def test_everything_that_is_wrong_with_arrays_is_reported(arrays: Path) -> None:
    (arrays / "fog.npy").unlink()
    np.save(arrays / "snow.npy", np.zeros((5 * IMAGES, 32, 32, 3)))
    np.save(arrays / "contrast.npy", np.zeros((10, 32, 32, 3), np.uint8))
    whole = (arrays / "pixelate.npy").read_bytes()
    (arrays / "pixelate.npy").write_bytes(whole[:-5])
    np.save(arrays / "labels.npy", np.full(5 * IMAGES, 10))
    check = only(arrays)
    assert len(check.problems) == 5
    for word, sentence in (
        ("missing", "missing fog"),
        ("snow", "snow.npy has float64 (15, 32, 32, 3): expected uint8"),
        ("contrast", "contrast.npy has 10 images: expected 15"),
        ("pixelate", "pixelate.npy is damaged"),
        ("labels", "labels.npy: labels must be 0 to 9; got 10"),
    ):
        (found,) = (problem for problem in check.problems if word in problem)
        assert sentence in found


def test_clean_batches_are_counted(tmp_path: Path) -> None:
    folder = tmp_path / "cifar-100-python"
    folder.mkdir()
    content = {b"data": np.zeros((2, 3072), np.uint8), b"fine_labels": [0, 99]}
    (folder / "test").write_bytes(pickle.dumps(content))
    check = only(tmp_path)
    assert (check.name, check.found) == ("CIFAR-100", "2 test images, 0 training images")
    assert check.problems == [f"{folder / 'test'} has 2 images: expected 10000"]
    assert check.notes == ["missing: train; a source model is trained without them"]
    (folder / "test").rename(folder / "train")
    assert f"{folder / 'test'} is missing" in only(tmp_path).problems


def test_an_archive_is_looked_into(tmp_path: Path) -> None:
    np.savez(tmp_path / "cifar10.npz", x_test=np.zeros((2, 32, 32, 3), np.uint8), y_test=[0, 1])
    check = only(tmp_path)
    assert check.problems == [f"{tmp_path / 'cifar10.npz'} has 2 test images: expected 10000"]
    assert "has no x_train" in check.notes[0]


@pytest.fixture
def stored(tmp_path: Path) -> Path:
    root = tmp_path / "ImageNet-C"
    write_stored(root, ["fog"], severities=range(1, 6))
    return root


def test_a_stored_set_is_counted(stored: Path) -> None:
    check = only(stored.parent)
    assert check.found == "1 corruptions, 5 severities in all, 6 images"
    assert len(check.problems) == 1
    assert "missing gaussian_noise, shot_noise" in check.problems[0]


def test_everything_that_is_wrong_with_files_is_reported(stored: Path) -> None:
    first = stored / "fog" / "1" / WNIDS[0]
    sorted(first.iterdir())[0].write_bytes(b"no header")
    sorted(first.iterdir())[1].write_bytes(b"")
    for path in (stored / "fog" / "2" / WNIDS[1]).iterdir():
        path.unlink()
    (stored / "fog" / "5").rename(stored / "fog" / "6")
    problems = [problem.removeprefix(str(stored)) for problem in only(stored.parent).problems]
    name = f"{WNIDS[0]}/ILSVRC2012_val_0000000"
    assert problems[1:] == [
        "/fog has no severity 5",
        f"/fog/1: 1 empty files, first {name}1.JPEG",
        f"/fog/1: 1 files without a readable header, first {name}0.JPEG",
        f"/fog/2: 1 class folders without images, first {WNIDS[1]}",
        "/fog/2 has 4 images: expected 6",
    ]


def test_few_classes_are_a_note_unless_a_list_names_them(tmp_path: Path) -> None:
    write_classes(tmp_path / "val", each=1)
    check = only(tmp_path)
    assert (check.name, check.found, check.problems) == ("ImageNet val", "3 images, 3 classes", [])
    assert "3 class folders and no classes.txt" in check.notes[0]
    (tmp_path / "classes.txt").write_text("\n".join(WNIDS))
    assert only(tmp_path).notes == []


def test_an_empty_folder_holds_nothing_and_a_missing_one_is_named(tmp_path: Path) -> None:
    assert check_folder(tmp_path) == []
    with refused("no-such-folder", "nowhere"):
        check_folder(tmp_path / "nowhere")


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Expect as many pictures as the cases have."""
    monkeypatch.setattr(check_module, "_ACDC_TRAIN", 3)
    monkeypatch.setattr(check_module, "_CITYSCAPES", {"train": 4, "val": 4})


@pytest.mark.usefixtures("small")
def test_whole_sets_are_fine_and_lie_side_by_side(tmp_path: Path) -> None:
    write_acdc(tmp_path)
    write_cityscapes(tmp_path, "train")
    write_cityscapes(tmp_path, "val", "labelIds")
    acdc, city = check_folder(tmp_path)
    assert (acdc.name, acdc.folder, acdc.problems, acdc.notes) == ("ACDC", tmp_path / "rgb_anon", [], [])
    assert acdc.found == "training pictures with usable label maps: fog 3, night 3, rain 3, snow 3"
    assert (city.name, city.problems, city.notes) == ("Cityscapes", [], [])
    assert city.found == "pictures with usable label maps: train 4, val 4"


def test_published_counts_are_expected(tmp_path: Path) -> None:
    write_acdc(tmp_path, ["fog", "night", "snow"], count=1)
    write_cityscapes(tmp_path, "val")
    acdc, city = check_folder(tmp_path)
    assert f"{tmp_path / 'rgb_anon/fog/train'} has 1 pictures: expected 400" in acdc.problems
    assert any("rgb_anon/rain/train contains no images" in problem for problem in acdc.problems)
    assert acdc.found.endswith("fog 1, night 1, rain 0, snow 1")
    assert city.problems == [f"{tmp_path / 'leftImg8bit/val'} has 4 pictures: expected 500"]
    assert city.notes == ["no train/: a source model cannot be trained"]


@pytest.mark.usefixtures("small")
def test_everything_that_is_wrong_with_acdc_is_reported(tmp_path: Path) -> None:
    write_acdc(tmp_path)
    frame = "GP010476/GP010476_frame_000001"
    images, masks = tmp_path / "rgb_anon", tmp_path / "gt"
    (masks / f"fog/train/{frame}_gt_labelTrainIds.png").unlink()
    write_mask(masks / f"night/train/{frame}_gt_labelTrainIds.png", 0, (30, 30))
    write_mask(masks / f"rain/train/{frame}_gt_labelTrainIds.png", 0, (64, 36), (0, 19))
    Image.new("I;16", (64, 36)).save(images / "snow/train/GOPR0475/GOPR0475_frame_000000_rgb_anon.png")
    picture = images / f"snow/train/{frame}_rgb_anon.png"
    picture.write_bytes(picture.read_bytes()[:-40])
    check = only(tmp_path)
    assert check.found.endswith("fog 2, night 2, rain 2, snow 1")
    fog, night, rain, deep, snow = check.problems
    assert f"fog/train/{frame}_rgb_anon.png has no label map: expected {masks}" in fog
    assert f"night/train/{frame}_gt_labelTrainIds.png has 30 x 30 px, but its picture" in night
    assert f"rain/train/{frame}_gt_labelTrainIds.png: labels must be 0 to 18, or 255 for none; got 19" in rain
    assert "snow/train/GOPR0475/GOPR0475_frame_000000_rgb_anon.png is a picture of kind I;16" in deep
    assert f"snow/train/{frame}_rgb_anon.png cannot be read as an image" in snow


def test_camvid_is_not_imagenet(tmp_path: Path) -> None:
    for split in ("train", "val", "test"):
        write_folder(tmp_path / split, tmp_path / f"{split}annot")
    found = check_folder(tmp_path)
    assert [check.name for check in found] == ["train pictures", "val pictures", "test pictures"]
    assert {check.found for check in found} == {"3 with usable label maps, 11 classes"}
    assert not any(check.problems or check.notes for check in found)


def test_a_folder_of_images_and_masks(tmp_path: Path) -> None:
    write_folder(tmp_path / "images", tmp_path / "masks", void=2)
    assert str(tmp_path / "classes.txt") in only(tmp_path).problems[0]
    (tmp_path / "classes.txt").write_text("road\nhouse\ncar\n")
    write_mask(tmp_path / "masks" / "alone.png", 0)
    write_image(tmp_path / "images" / "broken.jpg", 9, (16, 12))
    broken = tmp_path / "images" / "broken.jpg"
    broken.write_bytes(broken.read_bytes()[:-60])
    write_mask(tmp_path / "masks" / "broken.png", 0)
    Image.new("RGB", (16, 12)).save(tmp_path / "masks" / "scene_1.png")
    check = only(tmp_path)
    assert check.found == "2 with usable label maps, 3 classes"
    assert len(check.problems) == 2
    assert "images/broken.jpg cannot be read as an image" in check.problems[0]
    assert "masks/scene_1.png is a picture of kind RGB: expected one class number per pixel" in check.problems[1]
    assert check.notes == [f"{tmp_path / 'masks'}: 1 label maps without a picture, first alone.png"]


def test_many_problems_of_one_kind_are_counted(tmp_path: Path) -> None:
    write_folder(tmp_path / "test", tmp_path / "testannot", count=8, void=12)
    check = only(tmp_path)
    assert len(check.problems) == 6
    assert check.problems[-1] == f"{tmp_path}: 3 more unusable pairs"
    assert check.found == "0 with usable label maps, 11 classes"


@pytest.mark.parametrize(
    ("folder", "missing"),
    [
        ("images", "masks/"), ("masks", "images/"), ("testannot", "test/"),
        ("rgb_anon/val", "gt/fog/"), ("leftImg8bit/val", "gtFine/val/"),
    ],
)  # fmt: skip
def test_half_a_set_is_reported(tmp_path: Path, folder: str, missing: str) -> None:
    (tmp_path / folder).mkdir(parents=True)
    problem = only(tmp_path).problems[0]
    assert str(tmp_path) in problem
    assert problem.endswith(missing)
