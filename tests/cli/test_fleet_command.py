"""`testdg adapt --engine ray` on the command line."""

import json
import socket
import sys
from pathlib import Path

import pytest
from rich.console import Console

from ray_tools import need_ray
from support.commands import refuses
from testdg.cli.display import print_failures
from testdg.cli.pictures import FleetScreen, totals_of
from testdg.studies.engine import Failed
from testdg.studies.fleet import End, Ended, Noted, Stopped, StreamProgress
from testdg.studies.ray import Lost


@pytest.fixture
def frames(tmp_path: Path) -> Path:
    (tmp_path / "frames" / "gate").mkdir(parents=True)
    return tmp_path / "frames"


def command(frames: Path | str, model: Path, out: Path, *more: str) -> list[str]:
    return ["adapt", str(frames), "--model", str(model), "--out", str(out), "--method", "tent", *more]


@pytest.mark.parametrize(
    ("options", "values"),
    [
        (["--engine", "rai"], ("'rai'", "'ray'")),
        (["--gpus", "0.1"], ("--gpus", "--engine ray")),
        (["--address", "host:6379"], ("--address", "--engine ray")),
        (["--engine", "ray", "--gpus", "1.5"], ("--gpus", "0 to 1", "got 1.5")),
        (["--engine", "ray", "--gpus", "-1"], ("--gpus", "got -1")),
        (["--engine", "ray", "--cpus", "0"], ("--cpus", "got 0")),
    ],
)
def test_mistakes_are_refused(
    frames: Path, model: Path, capsys: pytest.CaptureFixture[str], options: list[str], values: tuple[str, ...]
) -> None:
    refuses(capsys, command(frames, model, frames.parent / "out", *options), *values)


def test_folders_without_streams_and_clusters_that_do_not_answer_are_refused(
    frames: Path, model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    need_ray()
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
    refuses(capsys, command(frames / "gate", model, tmp_path / "out", "--engine=ray"), "gate")
    refuses(capsys, command("-", model, tmp_path / "out", "--engine=ray"), "-")
    refuses(capsys, command(frames, model, tmp_path / "out", "--engine=ray", f"--address={address}"), address)
    refuses(capsys, command(frames, model, tmp_path / "out", "--engine=ray", "--address=nowhere"), "'nowhere'")


def test_ray_that_is_not_installed_is_refused(
    frames: Path, model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    refuses(capsys, command(frames, model, tmp_path / "out", "--engine", "ray"), "testdg[ray]")


SUMMARY = {
    "predictions": 30, "skipped": 2, "learnt": 20, "changes": 1, "changed_by_adaptation": 0.125,
    "images_per_second": 12.34,
}  # fmt: skip


def test_every_end_has_a_line_and_all_of_them_a_sum(capsys: pytest.CaptureFixture[str]) -> None:
    ends: dict[str, End] = {
        "gate": Ended(0, SUMMARY), "\x1b[2Jroof": Failed(1, "no\npictures"), "yard": Stopped(2),
    }  # fmt: skip
    with FleetScreen(Console(file=sys.stdout, soft_wrap=True, highlight=False), list(ends)) as screen:
        screen.notify(Noted("all streams: hear"))
        screen.notify(StreamProgress(0, 0, 32, began=True))
        screen.notify(Lost(0))
        screen.notify(StreamProgress(0, 16, 32, began=True))
        for end in ends.values():
            screen.notify(end)
    assert capsys.readouterr().out.splitlines() == [
        "note      all streams: hear",
        "gate: its process was lost; another one resumes from the saved state",
        "1 of 3  gate: 30 predicted, 2 left out, 1 changes, 12.5 % changed by adaptation, 12.3 a second",
        "2 of 3  \\x1b[2Jroof: failed: no pictures",
        "3 of 3  yard: stopped; its state is saved",
    ]
    print_failures(list(ends), [end for end in ends.values() if isinstance(end, Failed)])
    assert capsys.readouterr().err == "testdg: \\x1b[2Jroof: no pictures\n"
    found = json.loads(json.dumps(totals_of(ends)))
    assert found["totals"] == {"predictions": 30, "skipped": 2, "learnt": 20, "changes": 1}
    assert found["failed"] == {"\x1b[2Jroof": "no\npictures"}
