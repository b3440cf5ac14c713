"""Changes that the whole method notices by how the images look."""

from pathlib import Path
from typing import Any

import pytest
import torch
from testdg_cases import make
from torch import Tensor

from testdg.methods.testdg import TestDG
from testdg.methods.testdg.detection import appearance
from testdg.methods.testdg.settings import TestDGSettings
from testdg.models import VisionModel
from testdg.testing import stream

LOOKS: dict[str, Any] = {
    "detect_by": "appearance", "threshold": 0.05, "history": 10, "recent": 3, "significance": 7.0,
}  # fmt: skip


def decisions(adapter: TestDG, batches: list[Tensor]) -> list[bool]:
    found = []
    for images in batches:
        adapter(images)
        found.append(adapter.diagnostics["change"] is True)
    return found


def test_the_looks_decide_whatever_the_model_says(vit: VisionModel, cnn: VisionModel) -> None:
    one, other = (make(model, **LOOKS) for model in (vit, cnn))
    batches = stream(one, 16, 12)
    assert decisions(one, batches) == decisions(other, batches) == [k == 10 for k in range(16)]
    torch.testing.assert_close(torch.tensor(one.detector.past[-1]), appearance(batches[-1]))
    assert one.diagnostics["confidence"] != other.diagnostics["confidence"]


def test_gathered_images_are_looked_at_together(vit: VisionModel) -> None:
    whole, pieces = (make(vit, **LOOKS, gather=12) for _ in range(2))
    batches = stream(whole, 16, 12)
    thirds = [part for images in batches for part in (images[:5], images[5:10], images[10:])]
    assert decisions(whole, batches).index(True) == 10
    assert decisions(pieces, thirds) == [k == 3 * 10 + 2 for k in range(3 * 16)]
    seen = zip(pieces.detector.past, whole.detector.past, strict=True)
    assert all(mine == pytest.approx(other, abs=1e-5) for mine, other in seen)


@pytest.mark.parametrize("stop", [3, 9, 13])
def test_a_restart_does_not_change_what_is_noticed(vit: VisionModel, stop: int, tmp_path: Path) -> None:
    """Before the change, between the change and its notice, and after it."""
    adapter = make(vit, **LOOKS)
    batches = stream(adapter, 16, 12)
    before = decisions(adapter, batches[:stop])
    adapter.save(tmp_path / "state")
    again = TestDG.load(tmp_path / "state", vit)
    assert isinstance(again, TestDG)
    assert before + decisions(again, batches[stop:]) == [k == 10 for k in range(16)]
    assert again.detector.count == 6


@pytest.mark.parametrize("preset", ["cifar10-c", "cifar100-c", "imagenet-c", "acdc"])
def test_published_settings_detect_as_the_released_code(preset: str) -> None:
    s = TestDGSettings(**TestDG.presets[preset])
    assert (s.detect_by, s.history, s.recent, s.significance) == ("confidence", 2, 1, 0.0)
