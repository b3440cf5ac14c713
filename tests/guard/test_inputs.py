"""Which images are worth learning from."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from testdg.core.guard.inputs import REASONS, RECENT, Inputs, neighbours


def smooth(count: int, seed: int = 0, size: int = 32) -> Tensor:
    """Images whose neighbouring pixels belong together."""
    coarse = torch.rand(count, 3, 6, 6, generator=torch.Generator().manual_seed(seed))
    return torch.nn.functional.interpolate(coarse, size=(size, size), mode="bilinear")


CODES = [code for code, _ in REASONS]


def against(images: Tensor, inputs: Inputs | None = None) -> list[set[str]]:
    flags = (inputs or Inputs()).look(images).flags
    return [{code for code, flag in zip(CODES, row, strict=True) if flag} for row in flags]


def test_ordinary_images_are_worth_it() -> None:
    assert against(smooth(20)) == [set()] * 20


@pytest.mark.parametrize("level", [0.0, 0.4, 1.0])
def test_one_colour_is_not(level: float) -> None:
    assert all("one-colour" in found for found in against(torch.full((3, 3, 32, 32), level)))


def test_an_image_at_one_end_of_the_scale_is_not() -> None:
    images = torch.zeros(2, 3, 32, 32)
    images[:, :, :2, :4] = 0.7  # 8 of 1,024 pixels show something
    assert against(images)[0] == {"saturated"}
    images[0, :, :16] = 0.7
    assert against(images[:1]) == [set()]


def test_black_and_white_at_once_is_no_end_of_the_scale() -> None:
    halves = torch.zeros(1, 3, 32, 32)
    halves[..., 16:] = 1.0
    assert against(halves) == [set()]


def test_noise_is_not() -> None:
    noise = torch.rand(10, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    assert against(noise) == [{"noise"}] * 10


@pytest.mark.parametrize("axis", [-1, -2])
def test_stripes_are_a_picture_though_they_differ_at_random(axis: int) -> None:
    lines = torch.rand(4, 3, 32, generator=torch.Generator().manual_seed(0))
    assert against(lines.unsqueeze(axis).expand(-1, -1, 32, 32)) == [set()] * 4


def test_a_noisy_picture_is() -> None:
    noise = 0.2 * torch.randn(10, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    assert against((smooth(10) + noise).clamp(0, 1)) == [set()] * 10


def test_a_frame_that_stands_still_is_worth_it_once() -> None:
    inputs, images = Inputs(), smooth(1)
    assert against(images.expand(4, -1, -1, -1), inputs) == [set(), *[{"same-frame"}] * 3]
    assert against(images, inputs) == [{"same-frame"}]
    assert against((images + 0.002).clamp(0, 1), inputs) == [{"same-frame"}]


def test_a_frame_is_forgotten_after_a_while() -> None:
    inputs, images = Inputs(), smooth(1)
    inputs.look(images)
    inputs.look(smooth(RECENT, seed=1))
    assert against(images, inputs) == [set()]
    inputs.clear()
    assert against(smooth(1, seed=1), inputs) == [set()]


def test_little_contrast_does_not_make_images_the_same() -> None:
    faint = 0.5 + 0.05 * (smooth(20) - 0.5)
    assert against(faint) == [set()] * 20


@given(st.floats(0, 0.95), st.integers(0, 99))
@settings(max_examples=25, deadline=None)
def test_correlation_of_neighbours_is_about_that_of_the_textbook(memory: float, seed: int) -> None:
    """Rows in which each pixel remembers the one before; borders make the two differ a little."""
    steps = torch.randn(1, 1, 40, 200, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    pixels = [steps[..., :1]]
    for number in range(1, steps.shape[-1]):
        pixels.append(memory * pixels[-1] + (1 - memory**2) ** 0.5 * steps[..., number : number + 1])
    image = torch.cat(pixels, -1)
    value = neighbours(image, -1, image.flatten(1).std(1))
    expected = torch.corrcoef(torch.stack([image[..., :-1].flatten(), image[..., 1:].flatten()]))[0, 1]
    torch.testing.assert_close(value[0], expected, atol=0.02, rtol=0)
