"""`testdg adapt --engine ray` on the command line."""

import json
import socket
import sys
from pathlib import Path

import pytest
from rich.console import Console

from ray_tools import need_ray
from testdg.cli.app import execute
from testdg.cli.display import complain
from testdg.cli.pictures import FleetScreen, plain
from testdg.studies.engine import Failed
from testdg.studies.fleet import End, Ended, Lost, Noted, Seen, Stopped


@pytest.fixture
def frames(tmp_path: Path) -> Path:
    (tmp_path / "frames" / "gate").mkdir(parents=True)
    return tmp_path / "frames"


def adapt(frames: Path | str, model: Path, out: Path, *more: str) -> int:
    return execute(["adapt", str(frames), "--model", str(model), "--out", str(out), "--method", "tent", *more])


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--engine", "rai"], "unknown engine 'rai'; did you mean 'ray'?"),
        (["--gpus", "0.1"], "--gpus is for a Ray cluster: add --engine ray, or leave it out"),
        (["--address", "host:6379"], "--address is for a Ray cluster: add --engine ray, or leave it out"),
        (["--engine", "ray", "--gpus", "1.5"], "--gpus must be a share of a GPU from 0 to 1; got 1.5"),
        (["--engine", "ray", "--gpus", "-1"], "--gpus must be a share of a GPU from 0 to 1; got -1"),
        (["--engine", "ray", "--cpus", "0"], "--cpus must be more than 0; got 0"),
    ],
)
def test_mistakes_are_one_sentence(
    frames: Path, model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], options: list[str], told: str
) -> None:
    assert adapt(frames, model, tmp_path / "out", *options) == 2
    error = capsys.readouterr().err
    assert told in error
    assert error.count("\n") == 1


def test_places_without_streams_and_clusters_that_do_not_answer(
    frames: Path, model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    need_ray()
    assert adapt(frames / "gate", model, tmp_path / "out", "--engine", "ray") == 2
    assert "gate has no subfolders: with --engine ray, every subfolder is a stream" in capsys.readouterr().err
    assert adapt("-", model, tmp_path / "out", "--engine", "ray") == 2
    assert "- is not a folder: with --engine ray, name one" in capsys.readouterr().err
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    assert adapt(frames, model, tmp_path / "out", "--engine", "ray", "--address", f"127.0.0.1:{port}") == 2
    error = capsys.readouterr().err
    assert f"no Ray cluster answers at 127.0.0.1:{port}" in error
    assert error.count("\n") == 1
    assert adapt(frames, model, tmp_path / "out", "--engine", "ray", "--address", "nowhere") == 2
    assert "a Ray address is HOST:PORT, ray://HOST:PORT or auto; got 'nowhere'" in capsys.readouterr().err


def test_ray_that_is_not_installed_is_told_with_the_remedy(
    frames: Path, model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    assert adapt(frames, model, tmp_path / "out", "--engine", "ray") == 2
    assert "Ray is not installed: pip install 'testdg[ray]'" in capsys.readouterr().err


SUMMARY = {
    "predictions": 30, "skipped": 2, "learnt": 20, "changes": 1, "changed_by_adaptation": 0.125,
    "images_per_second": 12.34,
}  # fmt: skip


def test_every_end_has_a_line_and_all_of_them_a_sum(capsys: pytest.CaptureFixture[str]) -> None:
    ends: dict[str, End] = {
        "gate": Ended(0, SUMMARY), "\x1b[2Jroof": Failed(1, "no\npictures"), "yard": Stopped(2),
    }  # fmt: skip
    with FleetScreen(Console(file=sys.stdout, soft_wrap=True, highlight=False), list(ends)) as screen:
        for news in (Noted("all streams: hear"), Seen(0, 0, 32, began=True), Lost(0), Seen(0, 16, 32, began=True)):
            screen.tell(news)
        for end in ends.values():
            screen.tell(end)
    assert capsys.readouterr().out.splitlines() == [
        "note      all streams: hear",
        "gate: its process was lost; another one goes on from the last state",
        "1 of 3  gate: 30 predicted, 2 left out, 1 changes, 12.5 % changed by adaptation, 12.3 a second",
        "2 of 3  \\x1b[2Jroof: failed: no pictures",
        "3 of 3  yard: stopped; what it has done is saved",
    ]
    complain(list(ends), [end for end in ends.values() if isinstance(end, Failed)])
    assert capsys.readouterr().err == "testdg: \\x1b[2Jroof: no pictures\n"
    found = json.loads(json.dumps(plain(ends)))
    assert found["totals"] == {"predictions": 30, "skipped": 2, "learnt": 20, "changes": 1}
    assert found["failed"] == {"\x1b[2Jroof": "no\npictures"}
