import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from support.training import generator
from testdg.runs.training.views import class_view, random_crop, random_flip


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**31), padding=st.integers(0, 4), height=st.integers(4, 9), width=st.integers(4, 9))
def test_a_crop_is_a_window_of_the_padded_image(seed: int, padding: int, height: int, width: int) -> None:
    images = torch.rand(3, 2, height, width, generator=generator(seed)) + 0.1
    cropped = random_crop(images, padding, generator(seed))
    assert cropped.shape == images.shape
    for image, crop in zip(images, cropped, strict=True):
        padded = torch.zeros(2, height + 2 * padding, width + 2 * padding)
        padded[:, padding : padding + height, padding : padding + width] = image
        windows = padded.unfold(1, height, 1).unfold(2, width, 1).flatten(1, 2)  # (C, places, H, W)
        assert any(torch.equal(windows[:, place], crop) for place in range(windows.shape[1]))


def test_crops_go_everywhere_and_half_of_the_images_are_mirrored() -> None:
    image = torch.arange(1.0, 65.0).view(1, 1, 8, 8).expand(900, -1, -1, -1)
    corners = random_crop(image, 1, generator())[:, 0, 4, 4]
    counts = torch.stack([(corners == value).sum() for value in corners.unique()])
    assert len(counts) == 9
    assert counts.min() > 60
    flipped = random_flip(image, generator())
    mirrored = (flipped[:, 0, 0, 0] == 8).sum()
    assert 400 < mirrored < 500
    assert torch.equal(flipped[flipped[:, 0, 0, 0] == 8][0], image[0].flip(2))


def test_a_view_stays_in_range_and_nothing_is_nothing() -> None:
    images = torch.rand(4, 3, 32, 32, generator=generator())
    view = class_view(images, generator())
    assert view.shape == images.shape
    assert 0 <= view.min() <= view.max() <= 1
    assert torch.equal(view, class_view(images, generator()))
    small = images[..., :4, :4].contiguous()  # an eighth of 4 pixels is none
    assert torch.equal(class_view(small, generator(), flip=False, colour=0.0), small)
