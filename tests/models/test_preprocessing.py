import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from support.errors import refused
from testdg.models import Preprocessing
from testdg.models.preprocessing import from_preprocessor_config, read_preprocessor, write_preprocessor

PILLOW = {name: Image.Resampling[name.upper()] for name in ("nearest", "bilinear", "bicubic")}


def picture(height: int, width: int) -> Tensor:
    """A picture with edges and noise, (3, H, W); no extremes, which Pillow would cut between its two passes."""
    levels = torch.randint(70, 180, (3, height, width), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    levels[:, : height // 2, : width // 3] = 185
    return levels


def by_pillow(levels: Tensor, size: tuple[int, int], resample: str) -> Tensor:
    image = Image.fromarray(levels.permute(1, 2, 0).numpy())
    return torch.from_numpy(np.array(image.resize((size[1], size[0]), PILLOW[resample]))).permute(2, 0, 1)


@pytest.mark.parametrize(
    ("resample", "target"),
    [("nearest", size) for size in ((24, 20), (96, 80))]
    + [("bilinear", size) for size in ((32, 32), (20, 45), (96, 80))]
    + [("bicubic", size) for size in ((32, 32), (20, 45))],
)
def test_resizing_is_that_of_pillow(resample: str, target: tuple[int, int]) -> None:
    levels = picture(48, 40)
    resized = Preprocessing(target, resample=resample).resize(levels[None] / 255)[0]  # type: ignore[arg-type]
    assert resized.shape == (3, *target)
    assert ((resized * 255).round() - by_pillow(levels, target, resample)).abs().max() <= 1


def test_bicubic_enlargement_is_cubic_convolution() -> None:
    """Keys' kernel with a = -0.75, as models of this field were trained with; Pillow's has -0.5."""
    levels = picture(8, 6)[0].double().numpy() / 255
    for axis, target in ((0, 28), (1, 21)):
        levels = np.apply_along_axis(cubic_convolution, axis, levels, target)
    resized = Preprocessing((28, 21), resample="bicubic").resize(picture(8, 6)[None] / 255)[0, 0]
    np.testing.assert_allclose(resized.numpy(), levels.clip(0, 1), atol=1e-5)


def cubic_convolution(values: np.ndarray, target: int, a: float = -0.75) -> np.ndarray:
    found = np.zeros(target)
    for k in range(target):
        centre = (k + 0.5) * len(values) / target - 0.5
        for tap in range(int(np.floor(centre)) - 1, int(np.floor(centre)) + 3):
            x = abs(centre - tap)
            near, far = (a + 2) * x**3 - (a + 3) * x**2 + 1, a * (x**3 - 5 * x**2 + 8 * x - 4)
            found[k] += values[min(max(tap, 0), len(values) - 1)] * (near if x <= 1 else far)
    return found


def test_images_of_the_right_size_stay_as_they_are() -> None:
    images = torch.rand(2, 3, 32, 32)
    assert torch.equal(Preprocessing((32, 32), resample="bicubic").resize(images), images)
    assert torch.equal(Preprocessing().resize(images), images)


def test_bicubic_overshoot_stays_in_range() -> None:
    resized = Preprocessing((50, 50), resample="bicubic").resize((torch.rand(1, 3, 9, 9) > 0.5).float())
    assert (resized.min(), resized.max()) == (0, 1)


@pytest.mark.parametrize(
    ("height", "width", "expected"), [(60, 40, (48, 32)), (40, 60, (32, 48)), (30, 59, (32, 62)), (32, 32, (32, 32))]
)
def test_the_shortest_edge_decides(height: int, width: int, expected: tuple[int, int]) -> None:
    assert Preprocessing(32).resize(torch.rand(1, 3, height, width)).shape[-2:] == expected


def test_a_crop_is_the_middle() -> None:
    images = torch.rand(1, 3, 32, 49)
    cropped = Preprocessing(32, (24, 20)).resize(images)
    assert torch.equal(cropped, images[..., 4:28, 14:34])


def test_a_crop_of_a_small_image_has_a_black_border() -> None:
    images = torch.rand(1, 3, 5, 30)
    cropped = Preprocessing(crop=(8, 10)).resize(images)
    assert torch.equal(cropped[..., 2:7, :], images[..., 10:20])
    assert cropped.shape == (1, 3, 8, 10)
    assert cropped[..., :2, :].sum() == cropped[..., 7:, :].sum() == 0


def test_the_input_size_is_known_where_it_is_fixed() -> None:
    assert Preprocessing((32, 24)).input_size == (32, 24)
    assert Preprocessing(256, (224, 200)).input_size == (224, 200)
    assert Preprocessing(256).input_size is None
    assert Preprocessing().input_size is None


@pytest.mark.parametrize(
    "preprocessing",
    [
        Preprocessing(),
        Preprocessing((32, 24), resample="bicubic", mean=(0.1, 0.2, 0.3), std=(0.4, 0.5, 0.6)),
        Preprocessing(256, (224, 200), "nearest"),
        Preprocessing(crop=(8, 8)),
    ],
)
def test_what_is_written_is_read_back(preprocessing: Preprocessing, tmp_path: Path) -> None:
    write_preprocessor(preprocessing, tmp_path)
    assert read_preprocessor(tmp_path) == preprocessing


def test_no_file_means_no_preprocessing(tmp_path: Path) -> None:
    assert read_preprocessor(tmp_path) is None


def test_published_configurations_are_understood() -> None:
    vit = {"do_resize": True, "size": 224, "resample": 2, "image_mean": [0.5] * 3, "image_std": [0.5] * 3}
    assert from_preprocessor_config(vit) == Preprocessing((224, 224), None, "bilinear", (0.5,) * 3, (0.5,) * 3)
    dino = {
        "do_center_crop": True, "crop_size": {"height": 224, "width": 224}, "size": {"shortest_edge": 256},
        "resample": 3, "image_mean": [0.485, 0.456, 0.406], "image_std": [0.229, 0.224, 0.225],
    }  # fmt: skip
    read = from_preprocessor_config(dino)
    assert (read.size, read.crop, read.resample) == (256, (224, 224), "bicubic")
    plain = from_preprocessor_config({"do_resize": False, "size": 8, "do_normalize": False, "image_mean": [0.5] * 3})
    assert plain == Preprocessing()


@pytest.mark.parametrize("content", ["{", "[1]", '{"size": {"width": 3}}', '{"resample": 99}', '{"size": "big"}'])
def test_a_broken_configuration_is_named(content: str, tmp_path: Path) -> None:
    (tmp_path / "preprocessor_config.json").write_text(content)
    with refused("preprocessing", "preprocessor_config.json"):
        read_preprocessor(tmp_path)


def test_what_is_written_is_plain_json(tmp_path: Path) -> None:
    write_preprocessor(Preprocessing(256, (224, 224), "bicubic", (0.5,) * 3, (0.25,) * 3), tmp_path)
    written = json.loads((tmp_path / "preprocessor_config.json").read_text())
    assert written["size"] == {"shortest_edge": 256}
    assert written["crop_size"] == {"height": 224, "width": 224}
    assert (written["resample"], written["image_std"], written["do_center_crop"]) == (3, [0.25] * 3, True)
