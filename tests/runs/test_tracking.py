"""TensorBoard's files are read back with TensorBoard itself."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from support.errors import refused
from support.runs import Disturbed, interrupt
from testdg.models import VisionModel
from testdg.runs import Observer, Result, run
from testdg.runs.observer import WINDOW, check_tracker, tracked

OPTIONS: dict[str, Any] = {"device": "cpu", "images": 30, "domains": ["fog", "contrast"], "batch_size": 2}


def scalars(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """Steps and values of every tag in a run's folder."""
    reader = pytest.importorskip(
        "tensorboard.backend.event_processing.event_accumulator", reason="tensorboard is not installed"
    )
    found = reader.EventAccumulator(str(folder / "tensorboard"), size_guidance={reader.SCALARS: 0})
    found.Reload()
    return {tag: [(one.step, one.value) for one in found.Scalars(tag)] for tag in found.Tags()["scalars"]}


def go(model: VisionModel, out: Path, method: str = "testdg", observer: Observer | None = None) -> Result:
    with tracked(observer or Observer(), "tensorboard") as both:
        return run("digits-c", method, model=model, out=out, observer=both, **OPTIONS)


def check(folder: Path) -> None:
    """Compare what was written with the events, added up by hand."""
    events = [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]
    found = scalars(folder)
    assert found["error/batch"] == [(e["batch"], pytest.approx(50 * e["errors"])) for e in events]
    for step, value in found["error/window"]:
        wrong = [event["errors"] for event in events[max(0, step - WINDOW + 1) : step + 1]]
        assert value == pytest.approx(50 * sum(wrong) / len(wrong), rel=1e-6)
    assert len(found["error/window"]) == len(events) == 30
    if "change" in events[0]["diagnostics"]:
        changes = [sum(event["diagnostics"]["change"] for event in events[: n + 1]) for n in range(len(events))]
        assert found["changes"] == list(enumerate(changes))


def test_batches_domains_and_changes_are_written(model: VisionModel, tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="tensorboard is not installed (pip install 'testdg[track]')")
    result = go(model, tmp_path)
    check(result.folder)
    found = scalars(result.folder)
    for number, visit in enumerate(result.domains):
        assert found[f"domains/{visit.name}"] == [(number, pytest.approx(visit.error))]
    assert set(found) == {"error/batch", "error/window", "changes", "domains/fog", "domains/contrast"}
    again = go(model, tmp_path)
    assert again == result
    assert scalars(result.folder) == found  # read back: the file is replaced, and nothing is there twice


def test_a_stopped_run_has_no_batch_twice(model: VisionModel, tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="tensorboard is not installed (pip install 'testdg[track]')")
    with pytest.raises(KeyboardInterrupt):
        go(model, tmp_path, "tent", Disturbed(interrupt, 11))
    (folder,) = tmp_path.glob("digits-c-tent-*")
    assert 0 < len(scalars(folder)["error/batch"]) < 30
    assert go(model, tmp_path, "tent").folder == folder
    check(folder)
    assert "changes" not in scalars(folder)


def test_a_tracker_that_does_not_exist_or_is_not_installed_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with refused("unknown-tracker", "tensorbord", "tensorboard"):
        check_tracker("tensorbord")
    for name in [name for name in sys.modules if name.startswith(("tensorboard", "torch.utils.tensorboard"))]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    with refused("not-installed", "testdg[track]"):
        check_tracker("tensorboard")
    check_tracker(None)
