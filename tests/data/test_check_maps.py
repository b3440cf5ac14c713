"""`check_folder` on pictures with label maps."""

from pathlib import Path

import pytest
from image_cases import write_image
from PIL import Image
from segmentation_cases import write_acdc, write_cityscapes, write_folder, write_mask

from testdg.data import check as check_module
from testdg.data import check as maps_module
from testdg.data.check import Check, check_folder


def only(folder: Path) -> Check:
    (check,) = check_folder(folder)
    return check


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Expect as many pictures as the cases have."""
    monkeypatch.setattr(maps_module, "_ACDC_TRAIN", 3)
    monkeypatch.setattr(maps_module, "_CITYSCAPES", {"train": 4, "val": 4})


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


@pytest.mark.parametrize(("folder", "lacks"), [("rgb_anon", "gt"), ("leftImg8bit", "gtFine")])
def test_pictures_without_any_label_maps_are_reported(tmp_path: Path, folder: str, lacks: str) -> None:
    (tmp_path / folder / "val").mkdir(parents=True)
    problem = only(tmp_path).problems[0]
    assert str(tmp_path) in problem
    assert f"{lacks}/" in problem


def test_camvid_is_not_imagenet(tmp_path: Path) -> None:
    for split in ("train", "val", "test"):
        write_folder(tmp_path / split, tmp_path / f"{split}annot")
    found = check_folder(tmp_path)
    assert [check.name for check in found] == ["train pictures", "val pictures", "test pictures"]
    assert {check.found for check in found} == {"3 with usable label maps, 11 classes"}
    assert not any(check.problems or check.notes for check in found)


def test_a_folder_of_images_and_masks(tmp_path: Path) -> None:
    write_folder(tmp_path / "images", tmp_path / "masks", void=2)
    assert "classes.txt is missing: name the classes of" in only(tmp_path).problems[0]
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
        ("images", "masks/"),
        ("masks", "images/"),
        ("testannot", "test/"),
    ],
)
def test_half_a_set_is_reported(tmp_path: Path, folder: str, missing: str) -> None:
    (tmp_path / folder).mkdir()
    problem = only(tmp_path).problems[0]
    assert problem.startswith(str(tmp_path / folder))
    assert problem.endswith(f"expected {missing}")


def test_the_layouts_are_listed() -> None:
    for layout in ("rgb_anon", "leftImg8bit", "images and masks", "testannot"):
        assert layout in check_module.looked_for()
