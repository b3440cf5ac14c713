"""The parts of the corruptions against independent references: SciPy, Pillow, NumPy and plain loops."""

from __future__ import annotations

import colorsys

import numpy as np
import pytest
import torch
from scipy import ndimage

from testdg.data.corruptions import ImageNoise
from testdg.data.corruptions.apply import _displacements, brightness, glass_sources, pixelate
from testdg.data.corruptions.filters import (
    Border,
    clamp,
    correlate,
    from_levels,
    gaussian,
    mirror,
    motion,
    reflect,
    to_levels,
    warp,
    zoom,
)
from testdg.data.corruptions.generator import plasma

IMAGES = torch.rand(2, 3, 20, 17, generator=torch.Generator().manual_seed(0))
SCIPY_MODES = [(clamp, "nearest"), (reflect, "mirror"), (mirror, "reflect")]


def close(ours: torch.Tensor, theirs: np.ndarray) -> bool:
    return np.allclose(ours.numpy(), theirs, atol=2e-6)


@pytest.mark.parametrize(("border", "mode"), [(clamp, "edge"), (reflect, "reflect"), (mirror, "symmetric")])
@pytest.mark.parametrize("size", [1, 2, 5])
def test_borders_continue_as_numpy_pads(border: Border, mode: str, size: int) -> None:
    padded = np.pad(np.arange(size), 7, mode=mode)
    assert np.array_equal(border(torch.arange(-7, size + 7), size).numpy(), padded)


@pytest.mark.parametrize(("border", "mode"), SCIPY_MODES)
def test_correlate(border: Border, mode: str) -> None:
    kernel = torch.randn(3, 5, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    theirs = ndimage.correlate(IMAGES.double().numpy(), kernel.numpy()[None, None], mode=mode)
    assert close(correlate(IMAGES, kernel, border), theirs)


@pytest.mark.parametrize("sigma", [0.05, 0.4, 1.0, 6.0])
def test_gaussian(sigma: float) -> None:
    theirs = ndimage.gaussian_filter(IMAGES.double().numpy(), (0, 0, sigma, sigma), mode="nearest", truncate=4)
    assert close(gaussian(IMAGES, sigma), theirs)


@pytest.mark.parametrize("factor", [1.0, 1.07, 1.75, 4.5])
def test_zoom(factor: float) -> None:
    side = 17
    square = IMAGES[..., :side, :]
    cropped = int(np.ceil(side / factor))
    start = (side - cropped) // 2
    centre = square[..., start : start + cropped, start : start + cropped].double().numpy()
    enlarged = ndimage.zoom(centre, (1, 1, factor, factor), order=1)
    trim = (enlarged.shape[-1] - side) // 2
    assert close(zoom(square, factor), enlarged[..., trim : trim + side, trim : trim + side])


@pytest.mark.parametrize(("border", "mode"), SCIPY_MODES)
def test_warp(border: Border, mode: str) -> None:
    generator = torch.Generator().manual_seed(2)
    rows, columns = (torch.rand(2, 20, 17, generator=generator, dtype=torch.float64) * 60 - 20 for _ in range(2))
    ours = warp(IMAGES, rows, columns, border)
    for n in range(2):
        for channel in range(3):
            image = IMAGES[n, channel].double().numpy()
            theirs = ndimage.map_coordinates(image, [rows[n].numpy(), columns[n].numpy()], order=1, mode=mode)
            assert close(ours[n, channel], theirs)


def test_displacements_are_smoothed_uniform_noise() -> None:
    across, down = _displacements(ImageNoise(0, "x", 1, [4]), 20, 17, amount=3.0, sigma=7.0)
    fields = ImageNoise(0, "x", 1, [4]).uniform(2, 20, 17, low=-1.0, high=1.0)[0].double().numpy()
    theirs = 3.0 * ndimage.gaussian_filter(fields, (0, 7.0, 7.0), mode="reflect", truncate=3)
    assert close(torch.cat([across, down]), theirs)


def boxed(rows: np.ndarray, size: int) -> np.ndarray:
    """Rows resized by their definition: the mean of those whose centre lies in the box of a new one."""
    scale = len(rows) / size
    reach = max(scale, 1.0) / 2
    gaps = (np.arange(len(rows)) + 0.5)[None] - (np.arange(size)[:, None] + 0.5) * scale
    inside = (gaps > -reach) & (gaps <= reach)
    return np.stack([np.floor(rows[chosen].mean(0) + 0.5) for chosen in inside])


@pytest.mark.parametrize("scale", [0.01, 0.3, 0.65, 0.95])
def test_pixelate_shrinks_and_enlarges_with_a_box_filter(scale: float) -> None:
    ours = to_levels(pixelate(IMAGES, ImageNoise(0, "x", 1, [0, 1]), scale))
    height, width = IMAGES.shape[-2:]
    for image, pixelated in zip(to_levels(IMAGES).permute(0, 2, 3, 1).numpy(), ours.permute(0, 2, 3, 1), strict=True):
        theirs = image.astype(float)
        for share in (scale, 1.0):  # smaller, then as large as before; across first
            theirs = boxed(theirs.swapaxes(0, 1), max(int(width * share), 1)).swapaxes(0, 1)
            theirs = boxed(theirs, max(int(height * share), 1))
        assert np.abs(pixelated.numpy() - theirs).max() <= 1  # halves are rounded up or down


def test_motion_runs_along_the_angle_with_one_sided_weights() -> None:
    point = torch.zeros(1, 1, 9, 9)
    point[..., 4, 4] = 1.0
    bell = np.exp(-0.5 * (np.arange(5) / 1.5) ** 2)
    bell /= bell.sum()
    right = motion(point, 2, 1.5, torch.tensor([0.0]))  # each pixel looks to its right
    assert close(right[0, 0, 4, :5], bell[::-1])
    up = motion(point, 2, 1.5, torch.tensor([-90.0]))
    assert close(up[0, 0, 4:, 4], bell)


@pytest.mark.parametrize("reach", [1, 2, 4])
def test_glass_is_the_sequential_copy(reach: int) -> None:
    height, width = 20, 17
    sources = glass_sources(ImageNoise(0, "glass", 5, [0, 1]), height, width, reach)
    offsets = ImageNoise(0, "glass", 5, [0, 1]).integers(2, height, width, low=-reach, high=reach)
    for n in range(2):
        copied = torch.arange(height * width).view(height, width).clone()
        for row in range(height - reach, reach, -1):
            for column in range(width - reach, reach, -1):
                down, right = offsets[n, :, row, column].tolist()
                copied[row, column] = copied[row + down, column + right].clone()
        assert torch.equal(sources[n], copied.flatten())


def test_plasma_is_a_cloud() -> None:
    noise = ImageNoise(0, "fog", 1, range(20))
    clouds = plasma(noise, 32, decay=2.0)
    assert clouds.shape == (20, 32, 32)
    assert torch.equal(clouds.amin(dim=(1, 2)), torch.zeros(20))
    assert torch.equal(clouds.amax(dim=(1, 2)), torch.ones(20))
    step = (clouds - clouds.roll(1, 2)).abs().mean()  # neighbours are alike, also across the border
    assert step < 0.5 * (clouds - clouds.roll(16, 2)).abs().mean()


def test_grey_levels_come_back() -> None:
    levels = torch.arange(256).to(torch.uint8)
    assert torch.equal(to_levels(from_levels(levels)), levels)
    assert to_levels(torch.tensor([-1.0, 2.0, 0.999])).tolist() == [0, 255, 254]


@pytest.mark.parametrize("added", [0.05, 0.3])
def test_brightness_is_added_to_the_value_of_the_colour(added: float) -> None:
    colours = [(0.0, 0.0, 0.0), (0.2, 0.2, 0.2), (0.5, 0.1, 0.0), (0.3, 0.9, 0.6), (1.0, 1.0, 1.0)]
    hues = [colorsys.rgb_to_hsv(*colour) for colour in colours]
    theirs = np.array([colorsys.hsv_to_rgb(hue, saturation, min(1, value + added)) for hue, saturation, value in hues])
    pixels = torch.tensor(colours).T[None, :, None]  # (1, 3, 1, 5)
    assert close(brightness(pixels, ImageNoise(0, "x", 1, [0]), added)[0, :, 0].T, theirs)


class TestImageNoise:
    INDICES = range(3, 203)

    def noise(self) -> ImageNoise:
        return ImageNoise(0, "test", 1, self.INDICES)

    def test_distributions(self) -> None:
        normal = self.noise().normal(100, mean=2.0, scale=3.0)
        assert normal.mean().item() == pytest.approx(2.0, abs=0.1)
        assert normal.std().item() == pytest.approx(3.0, abs=0.1)
        uniform = self.noise().uniform(100, low=-2.0, high=4.0)
        assert uniform.mean().item() == pytest.approx(1.0, abs=0.1)
        assert uniform.min() >= -2
        assert uniform.max() < 4
        assert self.noise().integers(100, low=-2, high=2).unique().tolist() == [-2, -1, 0, 1]
        counts = self.noise().poisson(torch.full((200, 100), 7.0))
        assert counts.mean().item() == pytest.approx(7.0, abs=0.1)
        assert counts.var().item() == pytest.approx(7.0, abs=0.3)

    def test_rows_belong_to_images(self) -> None:
        alone = ImageNoise(0, "test", 1, [10])
        together = self.noise()
        for _ in range(2):  # the second draw too
            assert torch.equal(alone.normal(5, 2)[0], together.normal(5, 2)[7])
            assert torch.equal(alone.uniform()[0], together.uniform()[7])

    def test_the_stream_is_the_same_everywhere(self) -> None:
        noise = ImageNoise(0, "gaussian_noise", 5, [0])
        assert noise.integers(6, low=0, high=1000)[0].tolist() == [247, 656, 161, 235, 494, 801]
