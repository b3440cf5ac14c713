"""Augmented views: in range, seeded, one draw for each image."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from testdg.data.augmentation import Augmentation, blur, jitter_colour, luma, rotate_hue, transform


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def smooth(count: int, size: tuple[int, int] = (24, 24), channels: int = 3, seed: int = 0) -> Tensor:
    coarse = torch.rand(count, channels, 4, 4, generator=seeded(seed))
    return F.interpolate(coarse, size, mode="bilinear")


@pytest.mark.parametrize("strength", [0.3, 1.0, 4.0])
def test_views_have_the_shape_and_the_range_of_images(strength: float) -> None:
    flat = torch.zeros(3, 3, 16, 16)
    for images in (smooth(5), smooth(2, (20, 33)), smooth(3, channels=1), smooth(3, channels=4), flat, flat + 1):
        kept = images.clone()
        view = Augmentation(strength)(images, seeded())
        assert view.shape == images.shape
        assert view.dtype == torch.float32
        assert 0 <= float(view.min()) <= float(view.max()) <= 1
        assert torch.equal(images, kept)
        assert not torch.equal(view, images)


def test_strength_zero_leaves_images_and_generator_alone() -> None:
    images, generator = smooth(3), seeded()
    before = generator.get_state()
    assert torch.equal(Augmentation(0.0)(images, generator), images)
    assert torch.equal(generator.get_state(), before)


def test_a_stronger_view_is_farther_from_the_images() -> None:
    images = smooth(64)
    unflipped = [jitter_colour(images, strength, seeded()) - images for strength in (0.1, 0.3, 1.0)]
    weak, middle, strong = (float(difference.abs().mean()) for difference in unflipped)
    assert 0 < weak < middle < strong


def test_the_generator_alone_decides() -> None:
    images, augment = smooth(4), Augmentation(1.0)
    one = augment(images, seeded(1))
    torch.rand(5)
    assert torch.equal(augment(images, seeded(1)), one)
    assert not torch.equal(augment(images, seeded(2)), one)
    generator = seeded(1)
    assert not torch.equal(augment(images, generator), augment(images, generator))


@pytest.mark.parametrize("part", ["all", "colour", "transform", "blur"])
def test_each_image_has_a_draw_of_its_own(part: str) -> None:
    images = smooth(1).expand(6, -1, -1, -1)
    view = {
        "all": lambda: Augmentation()(images, seeded()),
        "colour": lambda: jitter_colour(images, 1.0, seeded()),
        "transform": lambda: transform(images, 1.0, seeded()),
        "blur": lambda: blur(torch.rand(1, 3, 24, 24, generator=seeded()).expand(6, -1, -1, -1), 2.0, seeded()),
    }[part]()
    gaps = torch.cdist(view.flatten(1), view.flatten(1), p=float("inf"))
    assert float((gaps + torch.eye(6)).min()) > 1e-3


def test_the_view_of_an_image_does_not_depend_on_its_neighbours() -> None:
    images, other = smooth(4), smooth(4, seed=1)
    other[2] = images[2]
    augment = Augmentation(1.0)
    torch.testing.assert_close(augment(images, seeded())[2], augment(other, seeded())[2])


def test_turning_the_hue_keeps_the_luma() -> None:
    images, turns = smooth(5), torch.tensor([-0.4, -0.06, 0.01, 0.25, 0.5])
    turned = rotate_hue(images, turns)
    torch.testing.assert_close(luma(turned), luma(images), rtol=1e-4, atol=1e-5)
    assert float((turned - images).abs().amax((1, 2, 3)).min()) > 1e-3
    torch.testing.assert_close(rotate_hue(turned, -turns), images, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(rotate_hue(images, torch.ones(5)), images, rtol=1e-4, atol=1e-5)
    grey = luma(images).expand(-1, 3, -1, -1)
    torch.testing.assert_close(rotate_hue(grey, turns), grey, rtol=1e-4, atol=1e-5)


def test_luma_is_the_weighted_sum_of_the_colours() -> None:
    pixel = torch.tensor([0.2, 0.5, 0.9]).view(1, 3, 1, 1)
    assert float(luma(pixel)) == pytest.approx(0.299 * 0.2 + 0.587 * 0.5 + 0.114 * 0.9)


def test_without_strength_the_geometry_is_the_image_or_its_mirror() -> None:
    images = smooth(200, (9, 12))
    moved = transform(images, 0.0, seeded())
    same = (moved - images).abs().amax((1, 2, 3)) < 1e-4
    mirrored = (moved - images.flip(3)).abs().amax((1, 2, 3)) < 1e-4
    assert bool((same ^ mirrored).all())
    assert 70 < int(mirrored.sum()) < 130
    torch.testing.assert_close(transform(images, 0.0, seeded(), mirror=False), images, rtol=0, atol=1e-4)
    shaken = [Augmentation(1e-3, noise=0.0, flip=flip)(images, seeded()) for flip in (True, False)]
    near = [int(((view - images).abs().amax((1, 2, 3)) < 0.05).sum()) for view in shaken]
    assert near[0] < 130
    assert near[1] == 200


def test_a_shift_is_an_eighth_of_the_image_at_most() -> None:
    size = 64
    ramp = torch.linspace(0.5, size - 0.5, size).view(1, 1, 1, -1).expand(300, 3, size, size) / size
    moved = transform(ramp, 1.0, seeded())
    centre = moved[:, 0, size // 2 - 1 : size // 2 + 1, size // 2 - 1 : size // 2 + 1].mean((1, 2)) - 0.5
    assert 0.1 < float(centre.abs().max()) <= 0.1251


def test_blur_keeps_flat_images_and_the_mean() -> None:
    flat = torch.full((3, 3, 10, 10), 0.37)
    torch.testing.assert_close(blur(flat, 2.0, seeded()), flat)
    noise = torch.rand(4, 3, 40, 40, generator=seeded())
    torch.testing.assert_close(blur(noise, 0.0, seeded()), noise)
    blurred = blur(noise, 2.0, seeded())
    assert bool((blurred.std((1, 2, 3)) < noise.std((1, 2, 3))).all())
    torch.testing.assert_close(blurred.mean((2, 3)), noise.mean((2, 3)), rtol=0, atol=0.02)


def test_a_view_is_exact_under_autocast() -> None:
    images, augment = smooth(2, (96, 96)), Augmentation()
    expected = augment(images, seeded())
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(augment(images, seeded()), expected)


def test_a_view_that_does_not_move_keeps_edges_in_their_place() -> None:
    images = torch.zeros(16, 3, 24, 24)
    images[:, :, :, 12:] = 1
    for move in (False, True):
        view = Augmentation(move=move)(images, seeded())
        left, right = view[..., :10].amax((1, 2, 3)), view[..., 14:].amin((1, 2, 3))
        assert bool((left < right).all()) is not move
