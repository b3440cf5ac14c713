import json
import pickle
from pathlib import Path

import numpy as np
import pytest
from image_cases import WNIDS, write_classes, write_stored

from support.errors import refused
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


def test_published_sizes_are_expected_where_nothing_else_is_said(arrays: Path) -> None:
    (arrays / "testdg-corrupt.json").unlink()
    problems = only(arrays).problems
    assert f"{arrays / 'fog.npy'} has 15 images: expected 50000" in problems


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
