"""A guard as part of a run: events, result, screen, and going on after a stop."""

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from testdg.cli.app import app
from testdg.cli.run import caution_lines
from testdg.runs import run
from testdg.runs.observer import Observer
from testdg.runs.run import _Run

SMALL: dict[str, Any] = {"benchmark": "digits-c", "method": "tent", "images": 60, "domains": ["fog", "contrast"]}


def test_a_guard_is_part_of_the_protocol_and_of_the_result(tmp_path: Path) -> None:
    plain = run(**SMALL, out=tmp_path)
    guarded = run(**SMALL, out=tmp_path, guard=True, settings={"learning_rate": 10.0})
    assert "guard" not in plain.record["tuning"]
    assert plain.guard is None
    assert guarded.record["tuning"].endswith("with a guard")
    assert guarded.guard is not None
    assert guarded.guard["roll_back"] >= 1
    events = [json.loads(line) for line in (guarded.folder / "events.jsonl").read_text().splitlines()]
    told = [event for event in events if "guard" in event]
    assert len(told) == sum(guarded.guard.values())
    assert all(event["guard_reason"] for event in told)
    assert run(**SMALL, out=tmp_path, guard=True, settings={"learning_rate": 10.0}) == guarded  # read back


class Stopped(Exception):
    pass


def test_a_guarded_run_that_was_stopped_gives_the_same_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = {**SMALL, "guard": True, "settings": {"learning_rate": 0.1}, "save_every": 0.0}
    expected = run(**wanted, out=tmp_path / "whole")
    write = _Run._write

    def stop(self: _Run, events: Any) -> None:
        if events[-1]["batch"] == 3:
            raise Stopped
        write(self, events)

    with monkeypatch.context() as patch:
        patch.setattr(_Run, "_write", stop)
        with pytest.raises(Stopped):
            run(**wanted, out=tmp_path / "stopped")
    found = run(**wanted, out=tmp_path / "stopped", observer=Observer())
    assert (found.domains, found.guard) == (expected.domains, expected.guard)


def test_the_screen_says_what_the_guard_did(tmp_path: Path) -> None:
    words = ["run", "--method", "tent", "--images", "40", "--domains", "fog", "--guard", "--out", str(tmp_path)]
    shown = CliRunner().invoke(app, words)
    assert shown.exit_code == 0, shown.output
    assert "TENT: guard: " in shown.output


def test_updates_that_were_left_out_are_told(tmp_path: Path) -> None:
    result = run(**SMALL, out=tmp_path, settings={"learning_rate": 1e30})
    events = [json.loads(line) for line in (result.folder / "events.jsonl").read_text().splitlines()]
    assert events[-1]["skipped_updates"] == result.skipped_updates
    assert result.skipped_updates > 0
    assert f"{result.skipped_updates} updates were left out" in caution_lines("TENT", result)[0]
