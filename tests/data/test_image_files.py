from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from torch import Tensor

from support.errors import refused
from support.image_sets import WNIDS, write_classes, write_image
from testdg.data.image_files import Decoder, ImageFiles, choose_images, list_images, read_classes
from testdg.data.pictures import fit

COUNT = 12


@pytest.fixture(scope="module")
def decoder() -> Decoder:
    return Decoder(workers=2)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("val")
    write_classes(folder, each=COUNT // len(WNIDS))
    return folder


def pixels_of(folder: Path, name: str) -> Tensor:
    with Image.open(folder / name) as picture:
        return torch.from_numpy(np.array(picture)).permute(2, 0, 1)


def test_files_are_read_in_order_of_class_and_name(folder: Path, decoder: Decoder) -> None:
    names = list(list_images(folder))
    assert names[:2] == ["n01440764/ILSVRC2012_val_00000000.JPEG", "n01440764/ILSVRC2012_val_00000001.JPEG"]
    assert len(names) == COUNT
    files = ImageFiles(folder, list_images(folder), decoder)
    expected = torch.stack([pixels_of(folder, name) for name in names])
    assert torch.equal(files.read(0, COUNT), expected)
    assert torch.equal(files.take([7, 0, 7]), expected[[7, 0, 7]])


@settings(max_examples=20, deadline=None)
@given(ranges=st.lists(st.tuples(st.integers(0, COUNT - 1), st.integers(1, 5)), min_size=1, max_size=6))
def test_what_is_read_does_not_depend_on_what_was_read_before(
    folder: Path, decoder: Decoder, ranges: list[tuple[int, int]]
) -> None:
    files = ImageFiles(folder, list_images(folder), decoder)
    for start, length in ranges:
        stop = min(start + length, COUNT)
        expected = torch.stack([pixels_of(folder, name) for name in files.names[start:stop]])
        assert torch.equal(files.read(start, stop), expected)


def test_no_more_than_four_batches_are_read_ahead(folder: Path, decoder: Decoder) -> None:
    files = ImageFiles(folder, list_images(folder), decoder)
    files.read(0, 2)
    assert list(files._ahead) == list(range(2, 10))
    files.read(2, 4)
    assert list(files._ahead) == list(range(4, 12))
    files.read(7, 9)
    assert sorted(files._ahead) == [9, 10, 11]


@pytest.mark.parametrize("size", [(300, 400), (500, 260), (100, 80), (257, 256)])
def test_other_sizes_are_resized_and_their_middle_is_cut_out(size: tuple[int, int]) -> None:
    small = np.random.default_rng(0).integers(0, 256, (8, 8, 3), dtype=np.uint8)
    picture = Image.fromarray(small).resize(size, Image.Resampling.BICUBIC)
    levels = torch.from_numpy(np.array(picture)).permute(2, 0, 1)[None].float()
    height, width = levels.shape[-2:]
    target = [256 * edge // min(height, width) for edge in (height, width)]
    resized = F.interpolate(levels, target, mode="bilinear", antialias=True)[0]
    top, left = (round((edge - 224) / 2) for edge in target)
    expected = resized[:, top : top + 224, left : left + 224]
    found = torch.from_numpy(np.array(fit(picture))).permute(2, 0, 1).float()
    assert (found - expected).abs().max() <= 1


def test_grey_and_transparent_pictures_become_rgb(tmp_path: Path, decoder: Decoder) -> None:
    (tmp_path / "a").mkdir()
    Image.new("L", (224, 224), 77).save(tmp_path / "a" / "grey.png")
    Image.new("RGBA", (224, 224), (1, 2, 3, 4)).save(tmp_path / "a" / "clear.png")
    images = ImageFiles(tmp_path, list_images(tmp_path), decoder).read(0, 2)
    assert images[:, :, 0, 0].tolist() == [[1, 2, 3], [77, 77, 77]]


@pytest.fixture
def damaged(tmp_path: Path) -> Path:
    """Six images; the fourth is cut off in the middle."""
    write_classes(tmp_path)
    path = tmp_path / list(list_images(tmp_path))[3]
    path.write_bytes(path.read_bytes()[:-900])
    return path


def test_an_unreadable_image_in_the_middle_is_named(damaged: Path, tmp_path: Path, decoder: Decoder) -> None:
    files = ImageFiles(tmp_path, list_images(tmp_path), decoder)
    assert len(files.read(0, 2)) == 2
    with refused("unreadable-picture", damaged, "truncated", "skip_unreadable"):
        files.read(2, 4)
    assert len(files.read(4, 6)) == 2


def test_unreadable_images_are_found_and_left_out(damaged: Path, tmp_path: Path, decoder: Decoder) -> None:
    other = write_image(tmp_path / WNIDS[0] / "zzz.JPEG", 1)
    other.write_bytes(b"")
    files = ImageFiles(tmp_path, list_images(tmp_path), decoder)
    left, found = files.readable()
    assert found == [other, damaged]
    assert left.read(0, 9).shape == (5, 3, 224, 224)
    with refused("unreadable-picture", 1):
        files.chosen([f"{WNIDS[0]}/zzz.JPEG"]).readable()


@pytest.mark.parametrize(
    ("subset", "places"),
    [(None, range(12)), ("all", range(12)), ("first:1", (0, 4, 8)), ("first:99", range(12)), ("ids.txt", (9, 2))],
)
def test_a_subset_is_all_the_first_of_each_class_or_a_list(
    folder: Path, tmp_path: Path, subset: str | None, places: Sequence[int]
) -> None:
    names = list(list_images(folder))
    (tmp_path / "ids.txt").write_text(f"{names[9]}\n{names[2]}\n\n")
    chosen = choose_images(folder, names, tmp_path / "ids.txt" if subset == "ids.txt" else subset)
    assert chosen == [names[place] for place in places]


@pytest.mark.parametrize(
    ("subset", "content", "code", "value"),
    [
        ("first:0", None, "wrong-subset", "first:0"),
        ("first:x", None, "wrong-subset", "first:x"),
        ("frist:3", None, "unreadable-list", "frist:3"),
        ("ids.txt", "", "empty-list", "ids.txt"),
        ("ids.txt", "n01440764\n", "wrong-list", "n01440764"),
        ("ids.txt", "../x.JPEG\n", "wrong-list", "../x.JPEG"),
        ("ids.txt", "a/b.JPEG\na/c.JPEG\n", "no-such-file", "a/b.JPEG"),
        ("ids.txt", "a/b.JPEG\na/b.JPEG\n", "duplicate", "a/b.JPEG"),
    ],
)
def test_a_wrong_subset_is_refused(
    folder: Path, tmp_path: Path, subset: str, content: str | None, code: str, value: str
) -> None:
    if content is not None:
        (tmp_path / subset).write_text(content)
        subset = str(tmp_path / subset)
    with refused(code, value):
        choose_images(folder, list(list_images(folder)), subset)


def test_an_empty_folder_is_named(tmp_path: Path) -> None:
    (tmp_path / WNIDS[0]).mkdir()
    with refused("no-images", tmp_path):
        list_images(tmp_path)


def test_a_list_of_classes_is_the_first_word_of_each_line(tmp_path: Path) -> None:
    path = tmp_path / "LOC_synset_mapping.txt"
    path.write_text("n01440764 tench, Tinca tinca\nn01443537 goldfish\n")
    assert read_classes(path) == ["n01440764", "n01443537"]
    path.write_text("a\na\n")
    with refused("duplicate", path):
        read_classes(path)
