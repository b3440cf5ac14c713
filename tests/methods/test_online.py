"""`OnlineModel`: what an adapter and a guard answer alike."""

from pathlib import Path

import pytest
import torch

from testdg import adapt, guard
from testdg.core.guard import Guard
from testdg.core.online import OnlineModel, load_online
from testdg.models import VisionModel
from testdg.testing import stream


@pytest.mark.parametrize(("method", "learnt"), [("tent", True), ("source", False)])
def test_an_adapter_has_no_decisions(method: str, learnt: bool, vit: VisionModel) -> None:
    adapter = adapt(vit, method)
    online: OnlineModel = adapter
    assert not online.learnt
    online(next(iter(stream(adapter, 1))))
    assert online.adapter is adapter
    assert online.learnt == learnt
    assert (online.guard, online.guard_counts, online.decision, online.event()) == (None, None, "", {})


def test_a_guard_reports_its_decision(vit: VisionModel) -> None:
    adapter = adapt(vit, "tent")
    online: OnlineModel = guard(adapter)
    online(torch.zeros(4, 3, 32, 32))
    assert online.adapter is adapter
    assert online.guard is online
    assert not online.learnt
    assert online.event() == {"guard": "skip", "guard_code": "one-colour", "guard_reason": online.decision}
    assert online.guard_counts == {"skip": 1, "roll_back": 0, "fall_back": 0}


@pytest.mark.parametrize("guarded", [False, True])
def test_a_saved_model_is_loaded_with_its_guard(guarded: bool, vit: VisionModel, tmp_path: Path) -> None:
    adapter = adapt(vit, "tent")
    online: OnlineModel = guard(adapter, torch.rand(10, 3, 32, 32)) if guarded else adapter
    first, second = stream(adapter, 2)
    online(first)
    online.save(tmp_path / "state")
    loaded = load_online(tmp_path / "state", vit)
    assert isinstance(loaded, Guard) == guarded
    assert torch.equal(loaded(second), online(second))
    assert loaded.values() == online.values()
