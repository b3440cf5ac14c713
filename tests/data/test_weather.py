from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.ndimage import gaussian_filter
from torch import Tensor

from support.errors import refused
from support.image_sets import write_cityscapes, write_folder
from testdg.data.benchmarks import load_benchmark
from testdg.data.corruptions import ImageNoise
from testdg.data.segmentation.classes import CAMVID, CAMVID_PALETTE, CITYSCAPES, CITYSCAPES_PALETTE
from testdg.data.weather import (
    CONDITIONS,
    FAR,
    Geometry,
    blur,
    clouds,
    flakes,
    fog,
    guess_geometry,
    night,
    rain,
    snow,
    streaks,
    weather,
)

SHAPE = torch.Size((2, 3, 40, 60))


def pictures(count: int = 3) -> Tensor:
    return torch.from_numpy(np.random.default_rng(0).integers(0, 256, (count, 3, 40, 60), dtype=np.uint8))


def flat(depth: float = 20.0, upward: float = 0.0, lights: float = 0.0, count: int = 2) -> Geometry:
    maps = (torch.full((count, 1, 40, 60), value) for value in (depth, upward, lights))
    return Geometry(*maps, torch.full((count,), 0.5))


def noise(name: str = "test", count: int = 2) -> ImageNoise:
    return ImageNoise(0, name, 1, range(count))


@settings(max_examples=12, deadline=None)
@given(name=st.sampled_from(CONDITIONS), chosen=st.lists(st.integers(0, 2), min_size=1, max_size=4))
def test_a_picture_does_not_depend_on_its_batch(name: str, chosen: list[int]) -> None:
    together = weather(pictures(), name, 4, indices=[7, 8, 9])
    apart = weather(pictures()[chosen], name, 4, indices=[7 + place for place in chosen])
    assert torch.equal(apart, together[chosen])


def test_rain_does_not_depend_on_the_horizons_of_other_pictures() -> None:
    images = pictures(2) / 255
    horizons = flat(upward=1.0)._replace(horizon=torch.tensor([0.7, 0.2]))
    together = rain(images, horizons, noise(), 200.0, 0.8, 1.0, 3, 0.1)
    alone = rain(images[:1], horizons.take([0]), noise(count=1), 200.0, 0.8, 1.0, 3, 0.1)
    assert torch.equal(together[:1], alone)


def test_wet_ground_shows_the_blurred_mirror_image() -> None:
    images, height, at = pictures(1) / 255, 40, 18  # rows from 18 on are ground
    found = rain(images, flat(1e-9, upward=1.0, count=1)._replace(horizon=torch.tensor([0.45])), noise(count=1),
                 1e6, 1.0, 1.0, 1, 0.01)[0]  # fmt: skip
    upside_down = images[0].numpy()[:, np.clip(2 * at - 1 - np.arange(height), 0, height - 1)]
    blurred = gaussian_filter(upside_down, (0, 1, 0), mode="nearest", radius=(0, 2, 0))
    down = (np.arange(height) + 0.5) / height - 0.45
    patches = clouds(noise(count=1), images.shape)[0, 0].numpy()
    shine = 0.75 * np.minimum(0.45 + 0.9 * patches, 1) * np.where(down > 0, 1 - 0.9 * down, 0)[:, None]
    soaked = 0.65 * images[0].numpy() * (1 - shine) + blurred * shine
    required = 0.75 * soaked + 0.25 * (soaked * np.reshape([0.299, 0.587, 0.114], (3, 1, 1))).sum(0)
    close = np.abs(found.numpy() - required).max(0) < 1e-5  # but for one streak
    assert close.mean() > 0.95
    assert close[at:].mean() > 0.95


@pytest.mark.parametrize("name", CONDITIONS)
def test_weather_depends_on_seed_and_place_and_grows_with_severity(name: str) -> None:
    clean = pictures(2)[:1].repeat(2, 1, 1, 1)
    made = weather(clean, name, 3, indices=[0, 1])
    assert not torch.equal(made[0], made[1])
    assert torch.equal(made, weather(clean, name, 3, indices=[0, 1]))
    assert not torch.equal(made, weather(clean, name, 3, indices=[0, 1], seed=1))
    smooth = (clean.float() * 0.3 + 90).byte()
    changes = [
        (weather(smooth, name, level, indices=[0, 1]).float() - smooth).abs().mean().item() for level in range(1, 6)
    ]
    assert changes == sorted(changes)
    assert changes[4] > 1.2 * changes[0]


@pytest.mark.parametrize("depth", [10.0, 50.0, 100.0])
def test_fog_follows_koschmieder(depth: float) -> None:
    dark, light = torch.zeros(SHAPE), torch.ones(SHAPE)
    foggy = [fog(images, flat(depth), noise(), 50.0) for images in (dark, light)]
    kept = foggy[1] - foggy[0]  # contrast that is left
    density = 0.8 + 0.4 * clouds(noise(), SHAPE)
    torch.testing.assert_close(kept, torch.exp(-3 * depth * density / 50).expand(SHAPE))
    air = foggy[0] / (1 - kept)
    assert (air.amax((1, 2, 3)) - air.amin((1, 2, 3)) < 1e-4).all()  # one airlight in all of a picture
    assert 0.72 <= air.min() <= air.max() <= 0.86


def test_at_night_lights_shine_and_the_sky_is_black() -> None:
    geometry = flat(40.0)
    geometry.lights[:, :, 5:9, 10:14] = 1.0
    geometry.depth[:, :, :4] = FAR
    dark = night(torch.full(SHAPE, 0.6), geometry, noise(), 0.03, 0.8, 0.0)
    assert dark[:, :, :3, 40:].max() < 0.1
    assert dark[:, :, 6:8, 11:13].mean() > 0.5 > 3 * dark[:, :, 20, 50].mean()
    assert dark[:, 0, 7, 12].mean() > dark[:, 2, 7, 12].mean()  # lamps are warm
    assert dark[:, :, 28, 30].mean() > 1.5 * dark[:, :, 28, 2].mean()  # the headlights point ahead


def test_rain_mirrors_what_is_above_on_wet_ground() -> None:
    images = torch.full(SHAPE, 0.4)
    images[:, 0, :20, :30] = 1.0  # red, on the left above the horizon
    wet, dry = flat(1.0, upward=1.0), flat(1.0)
    found = [rain(images, geometry, noise(), 1e6, 1.0, 1.0, 1, 0.01) for geometry in (wet, dry)]
    redness = [(image[:, 0] - image[:, 1])[:, 24:34] for image in found]
    assert redness[0][..., :28].mean() > 0.15
    assert redness[0][..., 32:].abs().mean() < 0.01
    assert redness[1].abs().mean() < 0.01


def test_snow_lies_on_what_faces_up() -> None:
    geometry = flat(1.0)
    geometry.upward[..., 30:, :] = 1.0
    found = snow(torch.full(SHAPE, 0.2), geometry, noise(), 1e6, 1.0, 1, 0.01)
    assert found[..., 30:, :].mean() > 0.7
    assert found[..., :29, :].mean() < 0.25


@settings(max_examples=10, deadline=None)
@given(height=st.integers(8, 250), count=st.integers(1, 60))
def test_what_falls_is_between_0_and_1_and_falls_everywhere(height: int, count: int) -> None:
    size = torch.Size((2, 3, height, height + 20))
    for field in (streaks(noise(), size, count, 0.1), flakes(noise(), size, count, 0.03), clouds(noise(), size)):
        assert field.shape == (2, 1, height, height + 20)
        assert 0 <= field.min() <= field.max() <= 1
        assert field.sum() > 0


def test_more_and_larger_things_fall_over_more_pixels() -> None:
    few, many = (streaks(noise(), SHAPE, count, 0.2).gt(0).sum() for count in (5, 50))
    assert few * 3 < many
    small, large = (flakes(noise(), SHAPE, 20, size).gt(0).sum() for size in (0.02, 0.1))
    assert small < large


@pytest.mark.parametrize("sigma", [0.8, 3.0, 9.0])
def test_blur_is_near_the_exact_one(sigma: float) -> None:
    random = np.random.default_rng(0)
    field = gaussian_filter(random.random((60, 90)), 2.0).astype(np.float32)
    expected = gaussian_filter(field, sigma, mode="nearest")
    found = blur(torch.from_numpy(field)[None, None], sigma)[0, 0].numpy()
    spread = float(expected.std())
    assert np.abs(found - expected)[10:-10, 10:-10].mean() < 0.25 * spread
    np.testing.assert_allclose(blur(torch.full((1, 1, 33, 47), 0.3), sigma).numpy(), 0.3, rtol=1e-4)


def test_the_geometry_of_a_photograph_is_guessed() -> None:
    image = torch.full((1, 3, 90, 160), 0.3)
    image[:, :, :30] = torch.tensor([0.75, 0.85, 0.95]).view(3, 1, 1)  # sky
    image[:, :, 30:60, :40] = torch.tensor([0.6, 0.2, 0.1]).view(3, 1, 1)  # a house
    image[:, :, 37:39, 100:102] = 1.0  # a lamp
    depth, upward, lights, horizon = guess_geometry(image)
    assert horizon.tolist() == pytest.approx([0.45])
    assert (depth[0, 0, :25] > 900).all()
    assert (depth[0, 0, 35:] < 130).all()
    column = depth[0, 0, 45:, 80]
    assert (column.diff() <= 0).all()  # nearer towards the lower edge
    assert upward[0, 0, 70:85, 70:90].min() > 0.95
    assert upward[0, 0, 36:39, 5:30].max() < 0.05
    assert lights[0, 0, 37, 100] > 0.9
    assert lights[0, 0, :30].max() == 0


@pytest.mark.parametrize(
    ("change", "code", "value"),
    [
        ({"name": "hail"}, "unknown-condition", "hail"),
        ({"severity": 6}, "wrong-severity", 6),
        ({"indices": [1]}, "wrong-indices", 3),
        ({"images": torch.zeros(3, 3, 4, 4)}, "image-shape", "torch.float32"),
    ],
)
def test_wrong_input_is_refused(change: dict[str, object], code: str, value: object) -> None:
    values = {"images": pictures(), "name": "fog", "severity": 1, "indices": [0, 1, 2], **change}
    with refused(code, value):
        weather(**values)  # type: ignore[arg-type]


def test_a_folder_like_camvid_becomes_a_weather_stream(tmp_path: Path) -> None:
    for split in ("train", "test"):
        write_folder(tmp_path / split, tmp_path / f"{split}annot", size=(60, 40))
    bench = load_benchmark("folder-weather", tmp_path, severity=3)
    assert (bench.classes, bench.palette) == (CAMVID, CAMVID_PALETTE)
    assert [bench.palette[bench.classes.index(name)] for name in ("road", "tree")] == [(128, 64, 128), (107, 142, 35)]
    assert bench.describe()["data"] == "test/ in weather made on the fly, seed 0; subset all; 11 classes"
    clean = bench.test()
    snowy = bench.domain("snow").read(0, 3)
    assert torch.equal(snowy[1], clean.labels)
    assert torch.equal((snowy[0] * 255).round().byte(), weather(clean.images, "snow", 3, indices=range(3)))
    assert len(bench.train()) == 3


def test_weather_does_not_depend_on_the_subset(tmp_path: Path) -> None:
    write_folder(tmp_path / "val", tmp_path / "valannot", size=(60, 40))
    (tmp_path / "ids.txt").write_text("val/scene_2.png\n")
    everything = load_benchmark("folder-weather", tmp_path).domain("rain").source.read(0, 3)
    one = load_benchmark("folder-weather", tmp_path, subset=tmp_path / "ids.txt").domain("rain").source.read(0, 1)
    assert torch.equal(one, everything[2:])


def test_other_layouts_are_read(tmp_path: Path) -> None:
    write_cityscapes(tmp_path / "city", "val", "labelIds")
    city = load_benchmark("folder-weather", tmp_path / "city")
    assert (city.classes, len(city.domain("fog"))) == (CITYSCAPES, 4)
    write_folder(tmp_path / "own" / "images", tmp_path / "own" / "masks", size=(60, 40), void=255)
    with refused("no-classes", "classes.txt", "masks"):
        load_benchmark("folder-weather", tmp_path / "own")
    (tmp_path / "own" / "classes.txt").write_text("road\nroad marks\nhouse\n")
    own = load_benchmark("folder-weather", tmp_path / "own")
    assert (own.classes, len(own.domain("fog"))) == (("road", "road marks", "house"), 3)
    assert (city.palette, own.palette) == (CITYSCAPES_PALETTE, ())
    with refused("no-such-data", "train/"):
        own.train()


def test_large_pictures_are_halved(tmp_path: Path) -> None:
    write_folder(tmp_path / "test", tmp_path / "testannot", 1, (2048, 64))
    images, labels = load_benchmark("folder-weather", tmp_path).domain("fog").read(0, 1)
    assert (images.shape, labels.shape) == ((1, 3, 32, 1024), (1, 64, 2048))


def test_a_folder_without_pictures_is_refused(tmp_path: Path) -> None:
    with refused("no-such-data", "leftImg8bit/val/"):
        load_benchmark("folder-weather", tmp_path)
    with refused("no-data", "folder-weather", "leftImg8bit"):
        load_benchmark("folder-weather")
