"""The corruptions against images that the reference recipe made; `TESTDG_ASSETS` names the folder with them.

Random corruptions are compared by what they do on average: mean, deviation and distance to the clean image.
"""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from testdg.data.corruptions import FrostTextures, corrupt_uint8
from testdg.data.corruptions.filters import from_levels, motion, to_levels
from testdg.data.corruptions.parameters import parameters_of
from testdg.data.corruptions.textures import _thin

ASSETS = Path(os.environ.get("TESTDG_ASSETS", ""))
REFERENCE = ASSETS / "cifar10" / "corruption_reference.npz"
pytestmark = [
    pytest.mark.skipif("TESTDG_ASSETS" not in os.environ, reason="TESTDG_ASSETS does not name the shared data"),
    pytest.mark.skipif(not REFERENCE.exists(), reason="TESTDG_ASSETS has no cifar10/corruption_reference.npz"),
]

SEVERITIES = (1, 3, 5)
SEEDS = 6
WORST_MEAN_DIFFERENCE = {  # in grey levels
    "brightness": 0.01,
    "contrast": 0.01,
    "defocus_blur": 0.01,
    "zoom_blur": 0.01,
    "pixelate": 0.0,
    "jpeg_compression": 0.5,  # the JPEG library may differ
}
RANDOM = (
    "gaussian_noise",
    "shot_noise",
    "impulse_noise",
    "glass_blur",
    "motion_blur",
    "snow",
    "fog",
    "elastic_transform",
)


@cache
def stored(key: str) -> Tensor:
    with np.load(REFERENCE) as arrays:
        return torch.from_numpy(arrays[key]).permute(0, 3, 1, 2).contiguous()


def statistics(images: Tensor) -> Tensor:
    """Mean, deviation within an image, and distance to the clean image, averaged over the images."""
    values = images.double()
    away = (values - stored("clean").double()).abs()
    return torch.stack([values.mean(), values.std(dim=(1, 2, 3)).mean(), away.mean()])


def assert_same_strength(ours: list[Tensor], reference: Tensor) -> None:
    ratio = torch.stack([statistics(images) for images in ours]).mean(dim=0) / statistics(reference)
    assert (ratio - 1).abs().max() < 0.1, f"mean, deviation, distance relative to the reference: {ratio.tolist()}"


@pytest.mark.parametrize("severity", SEVERITIES)
@pytest.mark.parametrize("name", WORST_MEAN_DIFFERENCE)
def test_deterministic_corruptions_are_the_reference(name: str, severity: int) -> None:
    ours = corrupt_uint8(stored("clean"), name, severity, indices=range(32))
    difference = (ours.double() - stored(f"{name}_{severity}").double()).abs()
    assert difference.mean() <= WORST_MEAN_DIFFERENCE[name]


@pytest.mark.parametrize("severity", SEVERITIES)
@pytest.mark.parametrize("name", RANDOM)
def test_random_corruptions_have_the_strength_of_the_reference(name: str, severity: int) -> None:
    ours = [corrupt_uint8(stored("clean"), name, severity, indices=range(32), seed=seed) for seed in range(SEEDS)]
    assert_same_strength(ours, stored(f"{name}_{severity}"))


@pytest.mark.parametrize("severity", SEVERITIES)
def test_some_angle_gives_the_motion_blur_of_the_reference(severity: int) -> None:
    clean, reference = from_levels(stored("clean")), stored(f"motion_blur_{severity}").float()
    radius, sigma = parameters_of("motion_blur", severity, "cifar", 32)
    candidates = [to_levels(motion(clean, radius, sigma, torch.full((32,), float(a)))) for a in range(-45, 46)]
    error = torch.stack([(image.float() - reference).abs().mean(dim=(1, 2, 3)) for image in candidates])
    assert error.amin(dim=0).max() < 0.5


@cache
def photographs() -> FrostTextures:
    return FrostTextures.from_folder(ASSETS / "frost")


@cache
def frost_of_the_reference(severity: int) -> list[tuple[int, float]]:
    """Find which photograph the reference laid over each image, and how well a piece of it explains the result."""
    kept, strength, scale = parameters_of("frost", severity, "cifar", 32)
    clean, reference = stored("clean").float(), stored(f"frost_{severity}").float()
    points = torch.randperm(1024, generator=torch.Generator().manual_seed(0))[:16]
    found = [(0, 256.0)] * 32
    for number, texture in enumerate(photographs().textures):
        pieces = _thin(texture, scale).unfold(1, 32, 1).unfold(2, 32, 1).permute(1, 2, 0, 3, 4)  # (y, x, 3, 32, 32)
        some = pieces[..., points // 32, points % 32].flatten(0, 1).flatten(1).float() * strength
        for n in range(32):
            seen, at = (images[n].flatten(1)[:, points].flatten() for images in (clean, reference))
            error = ((some + seen * kept).clamp(max=255).floor() - at).abs().sum(dim=1)
            for place in error.topk(20, largest=False).indices.tolist():
                piece = pieces[place // pieces.shape[1], place % pieces.shape[1]].float()
                blended = (clean[n] * kept + piece * strength + 1e-3).clamp(max=255).floor()
                found[n] = min(found[n], (number, (blended - reference[n]).abs().mean().item()), key=lambda f: f[1])
    return found


@pytest.mark.parametrize("severity", SEVERITIES)
def test_some_piece_of_a_photograph_gives_the_frost_of_the_reference(severity: int) -> None:
    assert max(error for _, error in frost_of_the_reference(severity)) < 0.5


@pytest.mark.parametrize("severity", SEVERITIES)
@pytest.mark.parametrize("kind", ["photographs", "procedural"])
def test_frost_has_the_strength_of_the_reference(kind: str, severity: int) -> None:
    """With the reference's choice of photograph: 32 choices among bright and dark ones are too few to average out."""
    frost = photographs() if kind == "photographs" else FrostTextures.procedural()
    choices = torch.tensor([number for number, _ in frost_of_the_reference(severity)])
    ours = [torch.empty_like(stored("clean")) for _ in range(SEEDS)]
    for choice in choices.unique().tolist():
        one = FrostTextures((frost.textures[choice],), "one")
        indices = (choices == choice).nonzero()[:, 0]
        for seed, images in enumerate(ours):
            images[indices] = corrupt_uint8(
                stored("clean")[indices], "frost", severity, indices=indices, seed=seed, frost=one
            )
    assert_same_strength(ours, stored(f"frost_{severity}"))
