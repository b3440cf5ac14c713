"""Pictures and arrays from strangers: a few bytes may ask for gigabytes, for another decoder, or never end."""

import json
import os
import subprocess
import sys
import zipfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from support.errors import refused
from support.image_sets import write_classes, write_image, write_mask
from testdg.bounds import MOST_PIXELS
from testdg.data.check import check_folder
from testdg.data.cifar import open_array, read_archive
from testdg.data.corruptions import FrostTextures
from testdg.data.image_files import read_classes
from testdg.data.picture_sets import read_manifest
from testdg.data.pictures import IMAGENET_CROP, read_image
from testdg.data.segmentation.classes import plain_table, read_class_names
from testdg.data.segmentation.files import Pair, check_picture, read_mask, read_picture, size_of
from testdg.errors import UserError
from testdg.models import Preprocessing

LIMITED = """
import resource, sys
from pathlib import Path
from testdg.data.cifar import read_archive
from testdg.data.pictures import IMAGENET_CROP, read_image
resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30))
path = Path(sys.argv[1])
archive, pictures = [(read_archive, "test", 10)], [(read_image, IMAGENET_CROP), (read_image,)]
for read, *options in archive if path.suffix == ".npz" else pictures:
    try:
        read(path, *options)
    except ValueError as error:
        print(error)
status = Path("/proc/self/status")  # of this process alone; ru_maxrss begins with that of its parent
lines = status.read_text().splitlines() if status.exists() else []
print(next((line.split()[1] for line in lines if line.startswith("VmHWM")), 0))
"""


def read_limited(path: Path) -> Sequence[str]:
    """The errors of reading a file in a process of its own, which must need less than a gigabyte."""
    done = subprocess.run([sys.executable, "-c", LIMITED, str(path)], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    *errors, memory = done.stdout.splitlines()
    assert int(memory) << 10 < 1 << 30
    return errors


def thin(path: Path, width: int = 60_000, height: int = 1) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("1", (width, height)).save(path, "PNG", optimize=True)
    return path


def test_a_thin_picture_of_a_few_bytes_takes_no_gigabytes(tmp_path: Path) -> None:
    path = thin(tmp_path / "thin.png")
    assert path.stat().st_size < 150
    answers = read_limited(path)
    assert len(answers) == 2
    assert all(
        "it has 60000 x 1 px: its long side is more than 100 times the short one" in message for message in answers
    )


def test_pictures_within_the_bounds_are_read(tmp_path: Path) -> None:
    path = thin(tmp_path / "long.png", 2000, 20)
    assert read_image(path, IMAGENET_CROP).shape == (3, 224, 224)
    assert read_image(path).shape == (3, 20, 2000)


def test_too_many_pixels_are_refused_by_the_header(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    side = int(MOST_PIXELS**0.5)
    path = thin(tmp_path / "large.png", side + 1, side + 1)
    monkeypatch.setattr("PIL.ImageFile.ImageFile.load", lambda picture: pytest.fail("it was decoded"))
    message = f"it has 8193 x 8193 px; the limit is {MOST_PIXELS} pixels"
    for read in (read_image, size_of, check_picture):
        with refused("unreadable-picture", message):
            read(path)


def test_no_program_is_started_for_a_picture(tmp_path: Path) -> None:
    path = tmp_path / "picture.png"
    path.write_bytes(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\nshowpage\n%%EOF\n")
    with refused("unreadable-picture", path, "no image format fits it"):
        size_of(path)


def test_a_pipe_is_not_a_picture(tmp_path: Path) -> None:
    (tmp_path / "frost").mkdir()
    path = tmp_path / "frost" / "a.png"
    os.mkfifo(path)
    for read in (read_image, size_of, check_picture):
        with refused("unreadable-picture", path, "it is not a regular file"):
            read(path)
    with refused("unreadable-picture", path):
        FrostTextures.from_folder(tmp_path / "frost")
    for read_text in (read_classes, read_class_names):
        with refused("unreadable-list", path):
            read_text(path)


def test_pairs_of_thin_pictures_are_refused(tmp_path: Path) -> None:
    pair = Pair("thin", thin(tmp_path / "thin.png"), thin(tmp_path / "mask.png"), plain_table(3))
    with refused("unreadable-picture", "60000 x 1"):
        read_picture(pair, (8, 8))
    with refused("unreadable-picture", "60000 x 1"):
        read_mask(pair, (8, 8))
    write_image(tmp_path / "image.png", 1, (16, 12))
    fine = Pair("fine", tmp_path / "image.png", write_mask(tmp_path / "fine.png", 1), plain_table(3))
    assert read_mask(fine, (12, 16)).shape == (12, 16)


def test_a_check_reports_pipes_and_thin_pictures(tmp_path: Path) -> None:
    write_classes(tmp_path / "val", each=1)
    thin(tmp_path / "val" / "n00000001" / "a.JPEG")
    (tmp_path / "val" / "n00000002").mkdir()
    os.mkfifo(tmp_path / "val" / "n00000002" / "a.JPEG")
    (check,) = check_folder(tmp_path)
    assert any("files without a readable header, first n00000001/a.JPEG" in message for message in check.problems)


@pytest.mark.parametrize(
    "about",
    [
        "[" * 100_000,
        "[]",
        {"images": "many"},
        {"images": 10**40},
        {"severities": 3},
        {"severities": ["1"]},
        {"corruptions": [[]]},
    ],
)
def test_a_manifest_of_wrong_types_is_refused(tmp_path: Path, about: str | dict[str, object]) -> None:
    base = {"version": "1", "seed": 0, "frost": "procedural"}
    text = about if isinstance(about, str) else json.dumps({**base, **about})
    (tmp_path / "testdg-corrupt.json").write_text(text)
    with refused("damaged-file", "testdg-corrupt.json"):
        read_manifest(tmp_path)


def test_a_large_text_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "classes.txt"
    with path.open("wb") as file:
        file.truncate(1 << 40)
    with refused("unreadable-list", path):
        read_classes(path)


@pytest.mark.parametrize(
    ("shape", "size", "sentence"),
    [
        ((1, 60_000), 256, "images of 60000 x 1 px cannot be resized: their long side is more than 100 times"),
        ((60_000, 1), 256, "images of 1 x 60000 px cannot be resized: their long side is more than 100 times"),
        ((10, 900), 1024, "images of 900 x 10 px cannot be resized to a short side of 1024 px: more than"),
        ((0, 9), 32, "images of 9 x 0 px cannot be resized: they have no pixels"),
        ((0, 9), (32, 32), "images of 9 x 0 px cannot be resized: they have no pixels"),
    ],
)
def test_thin_images_are_not_made_large(shape: tuple[int, int], size: int | tuple[int, int], sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        Preprocessing(size).resize(torch.zeros(1, 3, *shape))


def test_thin_images_are_resized_to_a_fixed_size_and_made_small() -> None:
    assert Preprocessing((8, 8)).resize(torch.zeros(1, 3, 1, 6000)).shape == (1, 3, 8, 8)
    assert Preprocessing(4).resize(torch.zeros(1, 3, 8, 800)).shape == (1, 3, 4, 400)
    assert np.prod(Preprocessing(32).resize(torch.zeros(1, 1, 8, 800)).shape) == 32 * 3200


def header(shape: str, kind: str = "|u1") -> bytes:
    text = f"{{'descr': '{kind}', 'fortran_order': False, 'shape': {shape}, }}".ljust(117) + "\n"
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text.encode()


def write_archive(path: Path, content: bytes, zeros: int = 0) -> Path:
    """An archive with one array; many zeros take little room."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive, archive.open("x_test.npy", "w") as file:
        file.write(content)
        for _ in range(zeros >> 20):
            file.write(bytes(1 << 20))
    return path


def test_an_array_that_unpacks_to_gigabytes_is_not_unpacked(tmp_path: Path) -> None:
    path = write_archive(tmp_path / "cifar10.npz", header("(524288, 32, 32, 3)"), 3 << 29)
    assert path.stat().st_size < 2 << 20
    (answer,) = read_limited(path)
    assert all(part in answer for part in ("x_test", "1610612864", "268435456"))


@pytest.mark.parametrize("shape", ["(9999999, 32, 32, 3)", "(-1, -1)", f"({2**62}, {2**62})"])
def test_an_array_that_announces_more_than_it_has_is_refused(tmp_path: Path, shape: str) -> None:
    path = write_archive(tmp_path / "cifar10.npz", header(shape) + bytes(64))
    with refused("damaged-file", "cifar10.npz", 192):
        read_archive(path, "test", 10)


def test_objects_in_an_archive_are_refused(tmp_path: Path) -> None:
    path = write_archive(tmp_path / "cifar10.npz", header("(1,)", "|O") + bytes(64))
    with refused("damaged-file"):
        read_archive(path, "test", 10)


def test_an_archive_in_place_of_an_array_is_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "fog.npy.npz", x=np.zeros(3))
    (tmp_path / "fog.npy.npz").rename(tmp_path / "fog.npy")
    with refused("damaged-file", "fog.npy"):
        open_array(tmp_path / "fog.npy")


@pytest.mark.parametrize("name", ["labels.npy", "cifar10.npz"])
def test_a_pipe_is_not_waited_for(tmp_path: Path, name: str) -> None:
    os.mkfifo(tmp_path / name)
    with refused("damaged-file"):
        open_array(tmp_path / name) if name == "labels.npy" else read_archive(tmp_path / name, "test", 10)
