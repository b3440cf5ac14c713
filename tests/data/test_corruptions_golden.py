"""Stored results keep all corruptions fixed, on every machine; run this file as a script to store new ones."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from testdg.data.corruptions import EXTRA, STANDARD_ORDER, corrupt_uint8

GOLDEN = Path(__file__).with_name("golden") / "corruptions.npz"
CASES: tuple[tuple[str, int], ...] = (("cifar", 3), ("cifar", 5), ("imagenet", 5))
THRESHOLDS = {"spatter", "snow", "glass_blur", "frost", "jpeg_compression"}  # a rounding may tip a few values over


def gradients(side: int = 12) -> Tensor:
    """Two pictures: a colour gradient, and one with sharp edges."""
    ramp = torch.arange(side) * (255 // (side - 1))
    down, across = ramp[:, None].expand(side, side), ramp[None, :].expand(side, side)
    smooth = torch.stack([across, down, 255 - across])
    sharp = torch.stack([(down > 120) * 200 + 20, (across > 90) * 90 + 60, ((across + down) % 46 > 20) * 255])
    return torch.stack([smooth, sharp]).to(torch.uint8)


def compute(name: str, parameters: str, severity: int) -> Tensor:
    return corrupt_uint8(gradients(), name, severity, indices=[0, 7], parameters=parameters)


@pytest.mark.parametrize("name", STANDARD_ORDER + EXTRA)
@pytest.mark.parametrize(("parameters", "severity"), CASES)
def test_nothing_has_moved(name: str, parameters: str, severity: int) -> None:
    with np.load(GOLDEN) as stored:
        expected = torch.from_numpy(stored[f"{name}_{parameters}_{severity}"])
    difference = (compute(name, parameters, severity).int() - expected.int()).abs()
    assert (difference > 1).float().mean() <= (0.02 if name in THRESHOLDS else 0)


if __name__ == "__main__":
    GOLDEN.parent.mkdir(exist_ok=True)
    cases = [(name, *case) for name in STANDARD_ORDER + EXTRA for case in CASES]
    np.savez_compressed(GOLDEN, **{f"{name}_{kind}_{level}": compute(name, kind, level) for name, kind, level in cases})
