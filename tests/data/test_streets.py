import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from testdg.data.benchmarks import load_benchmark
from testdg.data.streets.canvas import Grain, StreetCanvas, part
from testdg.data.streets.scene import HEIGHT, WIDTH, draw_scenes
from testdg.data.streets.street import CAR, CLASSES, PALETTE, ROAD, SKY
from testdg.data.weather import FAR, weather


@pytest.fixture(scope="module")
def scenes():
    return draw_scenes(range(8), seed=5)


def small_canvas() -> StreetCanvas:
    return StreetCanvas(24, 40, horizon=0.45, middle=0.55, eye=1.5, sky=SKY)


def faces(canvas: StreetCanvas, face: str, bounds: tuple[float, ...]) -> np.ndarray:
    """Distances of one face by brute force: the ray of each pixel meets the plane, inside its bounds or not."""
    left, right, low, high, near, far = bounds
    found = np.full((24, 40), np.inf)
    for row in range(24):
        for column in range(40):
            x, y = (column + 0.5 - 0.55 * 40) / 32, (0.45 * 24 - row - 0.5) / 32
            if face == "front":
                z = near
            elif face == "side":
                z = right / x if x != 0 else np.inf
            else:
                z = (high - 1.5) / y if y != 0 else np.inf
            at = (x * z, 1.5 + y * z, z)
            inside = {
                "front": left < at[0] < right and low < at[1] < high,
                "side": low < at[1] < high and near < z < far,
                "top": left < at[0] < right and near < z < far,
            }[face]
            if z > 0 and inside:
                found[row, column] = z
    return found


@pytest.mark.parametrize(("face", "bounds"), [
    ("front", (-2.0, 3.0, 0.2, 4.0, 7.0, 7.0)),
    ("side", (2.53, 2.53, 0.01, 3.03, 2.0, 30.7)),
    ("side", (-4.0, -4.0, 0.5, 9.0, 3.0, 12.0)),
    ("top", (-3.0, 1.0, 0.8, 0.8, 1.0, 20.0)),
])  # fmt: skip
def test_faces_are_where_rays_meet_them(face: str, bounds: tuple[float, ...]) -> None:
    canvas = small_canvas()
    left, right, low, high, near, far = bounds
    patch = {
        "front": lambda: canvas.front(left, right, low, high, near),
        "side": lambda: canvas.side(right, low, high, near, far),
        "top": lambda: canvas.top(left, right, high, near, far),
    }[face]()
    canvas.paint(patch, CAR, np.float32([1, 0, 0]))
    expected = faces(canvas, face, bounds)
    seen = np.isfinite(expected)
    assert seen.any()
    assert (canvas.labels == np.where(seen, CAR, SKY)).all()
    np.testing.assert_allclose(canvas.depth[seen], expected[seen], rtol=1e-5)
    assert (canvas.depth[~seen] == FAR).all()


@settings(max_examples=25, deadline=None)
@given(order=st.permutations(range(4)))
def test_what_is_nearer_hides_what_is_farther_in_any_order(order: list[int]) -> None:
    boards = [(-2, 1, 0, 3, 9.0), (-1, 2, 0, 2, 5.0), (0, 1, 1, 2, 3.0), (-5, 5, 0, 9, 20.0)]
    canvases = small_canvas(), small_canvas()
    for canvas, chosen in zip(canvases, (range(4), order), strict=True):
        for number in chosen:
            canvas.paint(canvas.front(*boards[number]), number, np.float32([number, 0, 0]), upward=number / 4)
    for name in ("colour", "labels", "depth", "upward"):
        assert np.array_equal(getattr(canvases[0], name), getattr(canvases[1], name))


def test_a_face_outside_the_picture_is_none() -> None:
    canvas = small_canvas()
    assert canvas.front(50, 60, 0, 1, 3.0) is None
    assert canvas.front(-1, 1, 0, 1, 0.1) is None
    assert canvas.top(-1, 1, 2.0, 1, 9) is None
    canvas.paint(None, CAR, np.float32([1, 1, 1]))
    assert (canvas.labels == SKY).all()


def test_only_the_ground_is_shaded() -> None:
    canvas = small_canvas()
    canvas.paint(canvas.top(-50, 50, 0.0, 1, 99), ROAD, np.float32([0.5] * 3), upward=1.0)
    canvas.paint(canvas.front(-1, 1, 0, 1, 6.0), CAR, np.float32([0.5] * 3))
    before = canvas.colour.copy()
    canvas.shade(canvas.top(-2, 2, 0.0, 3, 12), 0.5)
    changed = (canvas.colour != before).any(-1)
    assert changed.any()
    assert (canvas.labels[changed] == ROAD).all()
    assert (canvas.colour[changed] == 0.25).all()


def test_grain_is_smooth_and_periodic() -> None:
    grain = Grain(np.random.default_rng(0))
    u = np.linspace(0, 3, 200, dtype=np.float32)[None]
    values = grain.smooth(u, np.zeros((1, 1), np.float32), 1.0)
    assert np.abs(np.diff(values)).max() < 0.05
    assert values[0, 0] == grain.table[0, 0]
    assert part(np.float32([-0.25, 0.5, 2.25]), 1.0).tolist() == [0.75, 0.5, 0.25]


def test_a_scene_depends_on_its_number_and_seed_alone(scenes) -> None:
    again = draw_scenes([6, 2], seed=5)
    assert torch.equal(again.images, scenes.images[[6, 2]])
    assert torch.equal(again.labels, scenes.labels[[6, 2]])
    assert all(torch.equal(a, b[[6, 2]]) for a, b in zip(again.geometry, scenes.geometry, strict=True))
    assert not torch.equal(draw_scenes([2], seed=6).images, again.images[1:])


def test_scenes_show_every_class(scenes) -> None:
    assert scenes.images.shape == (8, 3, HEIGHT, WIDTH)
    assert scenes.labels.shape == (8, HEIGHT, WIDTH)
    assert (scenes.images.dtype, scenes.labels.dtype) == (torch.uint8, torch.uint8)
    counts = torch.bincount(scenes.labels.flatten().long(), minlength=len(CLASSES))
    assert len(counts) == len(CLASSES) == len(PALETTE)
    assert (counts > 0).all()


def test_pictures_stay_those_of_the_numbers_that_were_measured_on_them() -> None:
    images, labels, geometry = draw_scenes(range(4), seed=1)
    counts = torch.bincount(labels.flatten().long(), minlength=len(CLASSES)).float()
    required = torch.tensor([23797, 1706, 17814, 13, 1144, 5836, 5601, 462, 5067.0])
    torch.testing.assert_close(counts, required, rtol=0, atol=5)
    levels = {
        "clear": [92.52, 90.52, 88.06], "fog": [126.71, 124.24, 120.55], "night": [46.67, 44.30, 41.23],
        "rain": [88.84, 87.47, 85.33], "snow": [137.83, 136.30, 134.22],
    }  # fmt: skip
    for name, expected in levels.items():
        seen = images if name == "clear" else weather(images, name, 5, indices=range(4), geometry=geometry)
        torch.testing.assert_close(seen.float().mean((0, 2, 3)), torch.tensor(expected), rtol=0, atol=0.03)


def test_the_geometry_fits_the_labels(scenes) -> None:
    depth, upward, lights, horizon = scenes.geometry
    sky, road = scenes.labels[:, None] == SKY, scenes.labels[:, None] == ROAD
    assert (depth[sky] == FAR).all()
    assert (depth[~sky] < 150).all()
    assert (upward[road] == 1).all()
    assert (lights[road | sky] == 0).all()
    rows = (torch.arange(HEIGHT) + 0.25) / HEIGHT  # of the finer drawing, the upper of two rows
    below = rows.view(1, 1, -1, 1) - horizon.view(-1, 1, 1, 1)
    eye = (depth * below * HEIGHT / (0.8 * WIDTH))[road]  # flat ground: depth x slope is the height of the camera
    assert eye.min() > 1.34
    assert eye.max() < 1.76


def test_the_benchmark_is_embedded_and_has_severities() -> None:
    bench = load_benchmark("streets", images=3, severity=2, corruption_seed=7)
    assert (bench.embedded, bench.task, bench.needs) == (True, "segmentation", "")
    assert bench.describe()["images_per_domain"] == 3
    clean = bench.test()
    fog = bench.domain("fog", 4)
    expected = weather(clean.images, "fog", 4, indices=range(3), seed=7, geometry=draw_scenes(range(3), 1).geometry)
    assert torch.equal(fog.source.read(0, 3), expected)
    images, labels = fog.take([2, 0])
    assert torch.equal(labels, clean.labels[[2, 0]])
    assert torch.equal((images * 255).round().byte(), expected[[2, 0]])
    assert [batch.name for batch in bench.stream(2)] == [
        name for name in ("fog", "night", "rain", "snow") for _ in "ab"
    ]
    assert bench.domain("fog").severity == 2
