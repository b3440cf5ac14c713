"""A guard as part of a run: log, result, screen, and resuming."""

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from testdg.cli.app import app
from testdg.cli.run import caution_lines
from testdg.runs import run
from testdg.runs.folder import RunFolder

SMALL: dict[str, Any] = {"benchmark": "digits-c", "method": "tent", "images": 60, "domains": ["fog", "contrast"]}


def test_a_guard_is_in_the_record_and_in_the_result(tmp_path: Path) -> None:
    plain = run(**SMALL, out=tmp_path)
    guarded = run(**SMALL, out=tmp_path, guard=True, settings={"learning_rate": 10.0})
    assert "guard" not in plain.record["tuning"]
    assert plain.guard is None
    assert guarded.record["tuning"].endswith("with a guard")
    assert guarded.guard is not None
    assert guarded.guard["roll_back"] >= 1
    events = [json.loads(line) for line in (guarded.folder / "events.jsonl").read_text().splitlines()]
    decisions = [event for event in events if "guard" in event]
    assert len(decisions) == sum(guarded.guard.values())
    assert all(event["guard_reason"] for event in decisions)
    assert run(**SMALL, out=tmp_path, guard=True, settings={"learning_rate": 10.0}) == guarded  # read back


class Stopped(Exception):
    pass


def test_a_stopped_guarded_run_gives_the_same_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options = {**SMALL, "guard": True, "settings": {"learning_rate": 0.1}, "save_every": 0.0}
    expected = run(**options, out=tmp_path / "whole")
    append = RunFolder.append

    def stop(self: RunFolder, entries: Any) -> None:
        if entries[-1]["batch"] == 3:
            raise Stopped
        append(self, entries)

    with monkeypatch.context() as patch:
        patch.setattr(RunFolder, "append", stop)
        with pytest.raises(Stopped):
            run(**options, out=tmp_path / "stopped")
    found = run(**options, out=tmp_path / "stopped")
    assert (found.domains, found.guard) == (expected.domains, expected.guard)


def test_the_screen_shows_what_the_guard_did(tmp_path: Path) -> None:
    words = ["run", "--method", "tent", "--images", "40", "--domains", "fog", "--guard", "--out", str(tmp_path)]
    shown = CliRunner().invoke(app, words)
    assert shown.exit_code == 0, shown.output
    assert "TENT: guard: " in shown.output


def test_skipped_updates_are_reported(tmp_path: Path) -> None:
    result = run(**SMALL, out=tmp_path, settings={"learning_rate": 1e30})
    events = [json.loads(line) for line in (result.folder / "events.jsonl").read_text().splitlines()]
    assert events[-1]["skipped_updates"] == result.skipped_updates
    assert result.skipped_updates > 0
    assert f"{result.skipped_updates} updates were left out" in caution_lines("TENT", result)[0]
