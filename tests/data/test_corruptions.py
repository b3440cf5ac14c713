"""The laws that every corruption obeys."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from torch import Tensor

from support.errors import refused
from testdg.data.corruptions import (
    EXTRA,
    SEVERITIES,
    STANDARD_ORDER,
    FrostTextures,
    ImageNoise,
    corrupt,
    corrupt_uint8,
)
from testdg.data.corruptions import apply as applied

ALL = STANDARD_ORDER + EXTRA
RANDOM = (
    *("gaussian_noise", "shot_noise", "impulse_noise", "glass_blur", "motion_blur", "snow", "frost", "fog"),
    *("elastic_transform", "speckle_noise", "spatter"),
)
COUNT = 7


def pictures(count: int = COUNT, side: int = 16) -> Tensor:
    """Smooth colour pictures with an edge, all different, uint8."""
    y, x = torch.meshgrid(torch.linspace(0, 1, side), torch.linspace(0, 1, side), indexing="ij")
    planes = [
        torch.stack([x * (n + 1) / count, (y + n / count) / 2, ((x - 0.5) ** 2 + (y - 0.4) ** 2 < 0.1) * 0.6 + 0.2])
        for n in range(count)
    ]
    return (torch.stack(planes) * 255).to(torch.uint8)


def distance(first: Tensor, second: Tensor) -> float:
    return (first.float() - second.float()).abs().mean().item()


def test_the_order_is_the_published_one() -> None:
    assert len(STANDARD_ORDER) == 15
    assert len(set(ALL)) == 19
    assert STANDARD_ORDER[0] == "gaussian_noise"
    assert STANDARD_ORDER[-1] == "jpeg_compression"


@pytest.mark.parametrize("name", ALL)
def test_float_and_uint8_agree_and_inputs_stay(name: str) -> None:
    levels = pictures()
    images = levels.float() / 255
    before = images.clone()
    corrupted = corrupt_uint8(levels, name, 4, indices=range(COUNT))
    assert (corrupted.dtype, corrupted.shape) == (torch.uint8, levels.shape)
    assert torch.equal(corrupted.float() / 255, corrupt(images, name, 4, indices=range(COUNT)))
    assert torch.equal(images, before)
    assert torch.equal(levels, pictures())


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("parameters", ["cifar", "imagenet"])
def test_a_batch_of_any_size_and_order_gives_the_same_bits(name: str, parameters: str) -> None:
    images, indices = pictures(), torch.arange(COUNT) * 13
    whole = corrupt_uint8(images, name, 5, indices=indices, parameters=parameters)

    @settings(max_examples=6, deadline=None, derandomize=True)
    @given(st.sets(st.integers(1, COUNT - 1)), st.permutations(range(COUNT)))
    def check(cuts: set[int], order: list[int]) -> None:
        parts = [order[start:stop] for start, stop in pairwise([0, *sorted(cuts), COUNT])]
        pieces = [corrupt_uint8(images[part], name, 5, indices=indices[part], parameters=parameters) for part in parts]
        assert torch.equal(torch.cat(pieces), whole[order])

    check()


def test_memory_chunks_do_not_show(monkeypatch: pytest.MonkeyPatch) -> None:
    images = pictures()
    whole = corrupt_uint8(images, "snow", 3, indices=range(COUNT))
    monkeypatch.setattr(applied, "_CHUNK_CPU", 2 * images[0].numel())
    assert torch.equal(corrupt_uint8(images, "snow", 3, indices=range(COUNT)), whole)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
@pytest.mark.parametrize("name", ALL)
def test_the_device_does_not_matter(name: str) -> None:
    images = pictures(side=32)
    there = corrupt_uint8(images.cuda(), name, 5, indices=range(COUNT))
    assert there.device.type == "cuda"
    difference = (there.cpu().int() - corrupt_uint8(images, name, 5, indices=range(COUNT)).int()).abs()
    assert difference.max() <= 1


@pytest.mark.parametrize("name", ALL)
def test_noise_depends_on_seed_and_index(name: str) -> None:
    images, is_random = pictures(1).expand(2, -1, -1, -1), name in RANDOM
    first = corrupt_uint8(images, name, 4, indices=[0, 1])
    assert torch.equal(first, corrupt_uint8(images, name, 4, indices=[0, 1]))
    assert torch.equal(first[0], first[1]) is not is_random
    assert torch.equal(first, corrupt_uint8(images, name, 4, indices=[0, 1], seed=1)) is not is_random


def test_every_part_of_the_key_changes_the_noise() -> None:
    keys = [(0, "fog", 1, 0), (1, "fog", 1, 0), (0, "snow", 1, 0)]
    keys += [(0, "fog", 2, 0), (0, "fog", 1, 1), (0, "fog", 11, 0)]
    draws = [ImageNoise(seed, name, severity, [index]).normal(500)[0] for seed, name, severity, index in keys]
    correlation = torch.corrcoef(torch.stack(draws)) - torch.eye(len(keys))
    assert correlation.abs().max() < 0.2


@pytest.mark.parametrize("name", sorted(set(ALL) - {"elastic_transform", "saturate", "spatter", "glass_blur"}))
@pytest.mark.parametrize("parameters", ["cifar", "imagenet"])
def test_severity_moves_away_from_the_clean_image(name: str, parameters: str) -> None:
    images = pictures(4, side=32)
    distances = [
        distance(images, corrupt_uint8(images, name, severity, indices=range(4), parameters=parameters))
        for severity in SEVERITIES
    ]
    assert distances[-1] > distances[0]
    assert all(later > 0.8 * earlier for earlier, later in pairwise(distances)), distances


@pytest.mark.parametrize("name", ALL)
def test_large_and_oblong_images(name: str) -> None:
    images = pictures(1, side=72)[:, :, :, :66]
    for severity in (1, 5):
        result = corrupt_uint8(images, name, severity, indices=[3])
        assert result.shape == images.shape
        assert not torch.equal(result, images)


def test_the_side_chooses_the_parameters() -> None:
    for side, expected in ((32, "cifar"), (64, "cifar"), (65, "imagenet")):
        images = pictures(1, side)
        chosen = corrupt_uint8(images, "contrast", 1, indices=[0])
        assert torch.equal(chosen, corrupt_uint8(images, "contrast", 1, indices=[0], parameters=expected))


def test_an_empty_batch_stays_empty() -> None:
    assert corrupt(torch.zeros(0, 3, 8, 8), "fog", 1, indices=[]).shape == (0, 3, 8, 8)


@pytest.mark.parametrize("name", ALL)
def test_black_white_and_grey_are_no_trouble(name: str) -> None:
    images = torch.stack([torch.full((3, 8, 8), level) for level in (0.0, 1.0, 0.5)])
    assert corrupt(images, name, 5, indices=range(3)).isfinite().all()


def test_frost_describes_where_its_textures_come_from(tmp_path: Path) -> None:
    for number in range(7):
        Image.new("RGB", (40, 40), (number, 0, 0)).save(tmp_path / f"frost{number}.png")
    textures = FrostTextures.from_folder(tmp_path)
    assert textures.description == f"photographs from {tmp_path.name}"
    assert [int(texture[0, 0, 0]) for texture in textures.textures] == [0, 1, 2, 3, 4]
    assert FrostTextures.procedural().description == "procedural"
    images = pictures(2, 72)  # larger than the textures: they are continued
    assert corrupt_uint8(images, "frost", 3, indices=[0, 1], frost=textures).shape == images.shape


def test_frost_needs_pictures(tmp_path: Path) -> None:
    with refused("no-images", tmp_path):
        FrostTextures.from_folder(tmp_path)


@pytest.mark.parametrize(
    ("change", "code", "value"),
    [
        ({"name": "gausian_noise"}, "unknown-corruption", "gaussian_noise"),
        ({"severity": 6}, "wrong-severity", 6),
        ({"severity": 2.0}, "wrong-severity", 2.0),
        ({"parameters": "cifer"}, "unknown-parameter-set", "cifar"),
        ({"indices": [0]}, "wrong-indices", 2),
        ({"images": torch.zeros(3, 8, 8)}, "image-shape", "(3, 8, 8)"),
        ({"images": torch.zeros(2, 1, 8, 8)}, "image-shape", "(2, 1, 8, 8)"),
        ({"images": torch.zeros(2, 3, 8, 8, dtype=torch.uint8)}, "image-type", "torch.uint8"),
        ({"images": torch.full((2, 3, 8, 8), 255.0)}, "image-range", 255.0),
        ({"images": torch.full((2, 3, 8, 8), float("nan"))}, "image-range", "nan"),
    ],
)
def test_mistakes_are_named(change: dict[str, Any], code: str, value: object) -> None:
    arguments = {"images": torch.zeros(2, 3, 8, 8), "name": "fog", "severity": 1, "indices": [0, 1], **change}
    with refused(code, value):
        corrupt(**arguments)


def test_float_images_are_refused_by_corrupt_uint8() -> None:
    with refused("image-type", "torch.float32"):
        corrupt_uint8(torch.zeros(1, 3, 8, 8), "fog", 1, indices=[0])
