"""Pictures of every kind become the same tensor; anything else is refused."""

import io
import os
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from support.errors import refused
from testdg.data.pictures import Unreadable, decode, read_picture
from testdg.models import Preprocessing
from testdg.models.canvas import Canvas


@pytest.fixture(scope="module")
def levels() -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (7, 5, 3), dtype=np.uint8)


def encoded(picture: Image.Image, **options: object) -> bytes:
    file = io.BytesIO()
    picture.save(file, "PNG", **options)
    return file.getvalue()


def test_every_kind_of_picture_gives_the_same(levels: np.ndarray, tmp_path: Path) -> None:
    expected = torch.from_numpy(levels).permute(2, 0, 1).float() / 255
    picture = Image.fromarray(levels)
    picture.save(tmp_path / "a.png")
    picture.save(tmp_path / "a.bmp")
    first = np.ascontiguousarray(levels.transpose(2, 0, 1))
    kinds = [
        tmp_path / "a.png", str(tmp_path / "a.bmp"), encoded(picture), bytearray(encoded(picture)), picture,
        levels, first, np.dstack([levels, levels[..., :1]]),
        levels.astype(np.float32) / 255, levels.astype(np.uint16) * 257, torch.from_numpy(levels), expected,
        expected.permute(1, 2, 0), expected.double(),
    ]  # fmt: skip
    for kind in kinds:
        found = read_picture(kind)
        assert found.shape == (3, 7, 5)
        assert found.dtype == torch.float32
        torch.testing.assert_close(found, expected, atol=1e-6, rtol=0)


def test_grey_alpha_and_sixteen_bits() -> None:
    grey = Image.fromarray(np.arange(0, 240, 20, dtype=np.uint8).reshape(3, 4))
    expected = torch.from_numpy(np.array(grey)).float() / 255
    deep = Image.fromarray((np.array(grey).astype(np.uint16)) * 257)
    for picture in (grey, encoded(grey.convert("RGBA")), encoded(grey.convert("LA")), encoded(deep), np.array(grey)):
        torch.testing.assert_close(read_picture(picture), expected.expand(3, 3, 4), atol=1e-5, rtol=0)
    assert read_picture(encoded(grey), channels=1).shape == (1, 3, 4)


def test_the_axis_of_channels_is_found() -> None:
    assert decode(torch.zeros(3, 9, 4)).shape == (3, 9, 4)
    assert decode(torch.zeros(3, 9, 3)).shape == (3, 9, 3)
    assert decode(np.zeros((3, 9, 3), np.uint8)).shape == (3, 3, 9)


def test_pictures_stand_upright(levels: np.ndarray) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # the camera was turned by a quarter
    data = encoded(Image.fromarray(levels), exif=exif)
    expected = torch.from_numpy(np.rot90(levels, -1).copy()).permute(2, 0, 1)
    assert torch.equal(decode(data), expected)


@pytest.mark.parametrize(
    ("picture", "code", "value"),
    [
        (b"", "unreadable-picture", ""),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", "unreadable-picture", ""),
        (np.zeros((4, 4, 3), np.int64), "image-type", "int64"),
        (np.full((4, 4, 3), 2.0), "image-range", 2),
        (np.full((4, 4, 3), np.nan), "image-range", "NaN"),
        (np.zeros((4, 4, 5), np.uint8), "image-shape", "(4, 4, 5)"),
        (np.zeros((0, 4, 3), np.uint8), "image-shape", "(0, 4, 3)"),
        (np.zeros((4, 4, 3), object), "image-type", "object"),
        (torch.zeros(2, 3, 4, 4), "image-shape", "(2, 3, 4, 4)"),
        (np.zeros((2, 500, 3), np.uint8), "unreadable-picture", "500 x 2"),
        (42, "image-type", "int"),
    ],
)
def test_other_values_than_pictures_are_refused(picture: object, code: str, value: object) -> None:
    with refused(code, value) as caught:
        decode(picture)
    assert isinstance(caught.value, Unreadable)


@pytest.mark.parametrize(
    ("name", "value"),
    [("cut", ""), ("folder", ""), ("pipe", "regular file"), ("bomb", "9000 x 9000"), ("gone", "No such")],
)
def test_damaged_files_are_refused(name: str, value: str, levels: np.ndarray, tmp_path: Path) -> None:
    whole = encoded(Image.fromarray(levels).resize((300, 300)))
    (tmp_path / "cut.png").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "folder.png").mkdir()
    os.mkfifo(tmp_path / "pipe.png")
    Image.new("1", (9000, 9000)).save(tmp_path / "bomb.png")
    with refused("unreadable-picture", value):
        decode(tmp_path / f"{name}.png")


@pytest.mark.parametrize("size", [(97, 41), (41, 97), (64, 64), (40, 41), (33, 200), (20, 31)])
@pytest.mark.parametrize(
    "preprocessing",
    [
        Preprocessing((24, 16), resample="bicubic"),
        Preprocessing(33, (24, 25)),
        Preprocessing(32, (24, 24), resample="bicubic"),
        Preprocessing(24),
        Preprocessing((40, 40), (32, 30)),
        Preprocessing(24, (32, 32)),
        Preprocessing(),
        Preprocessing(None, (32, 32)),
    ],
)
def test_a_model_sees_the_same_on_the_canvas(preprocessing: Preprocessing, size: tuple[int, int]) -> None:
    image = torch.rand(3, *size, generator=torch.Generator().manual_seed(size[0]))
    expected = preprocessing.resize(image[None])
    canvas = Canvas(preprocessing)
    canvas.mixed = True
    for placed in (canvas.fit(image), canvas.shrink(image), Canvas(preprocessing).shrink(image)):
        assert torch.equal(preprocessing.resize(placed[None]), expected)
    many = torch.stack([image.flip(-1), image, image.flip(-2)])
    assert torch.equal(preprocessing.resize(many)[1:2], expected)


def test_large_pictures_are_resized_early() -> None:
    canvas = Canvas(Preprocessing((32, 32)))
    assert canvas.shrink(torch.rand(3, 400, 300)).shape == (3, 32, 32)
    assert canvas.shrink(torch.rand(3, 40, 30)).shape == (3, 40, 30)
    canvas.batches([torch.rand(3, 40, 30), torch.rand(3, 30, 40)])
    assert canvas.shrink(torch.rand(3, 40, 30)).shape == (3, 32, 32)


def test_pictures_of_several_sizes_share_a_batch_if_the_model_resizes() -> None:
    images = [torch.randint(0, 256, (3, 8, 8 + number % 3), dtype=torch.uint8) for number in range(6)]
    ((places, batch),) = Canvas(Preprocessing((4, 4))).batches(images)
    assert (places, batch.shape, batch.dtype) == ([0, 1, 2, 3, 4, 5], (6, 3, 4, 4), torch.float32)
    groups = Canvas(Preprocessing()).batches(images)
    assert sorted(places for places, _ in groups) == [[0, 3], [1, 4], [2, 5]]
    for places, batch in groups:
        for place, image in zip(places, batch, strict=True):
            assert torch.equal(image, images[place] / 255)
