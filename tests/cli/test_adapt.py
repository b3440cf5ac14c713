"""`testdg adapt` on the command line."""

import json
import signal
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from support.commands import refuses
from testdg.cli.app import INTERRUPTED, execute
from testdg.cli.pictures import StreamScreen
from testdg.runs.adapt import SUMMARY


@pytest.fixture
def frames(tmp_path: Path) -> Path:
    folder = tmp_path / "frames"
    folder.mkdir()
    for number in range(12):
        pixels = np.random.default_rng(number).integers(0, 256, (20, 30, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / f"{number}.png")
    (folder / "\x1b[2Jbroken.png").write_bytes(b"broken")
    return folder


@pytest.fixture
def command(frames: Path, model: Path, tmp_path: Path) -> list[str]:
    return ["adapt", str(frames), "--model", str(model), "--out", str(tmp_path / "out"), "--device", "cpu"]


def test_the_result_is_shown(command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert execute([*command, "--set", "source_images=64"]) == 0
    shown = capsys.readouterr().out
    assert "no --source: the first 64 pictures stand for the clean ones" in " ".join(shown.split())
    assert "left out: \\x1b[2Jbroken.png: no image format fits it" in shown
    assert "12 predicted, 1 left out" in shown
    assert "testdg_aligned on random-vit" in shown
    assert "\x1b" not in shown
    assert (tmp_path / "out" / "predictions.csv").read_text().count("\n") == 13


def test_stdout_is_json_alone(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert execute([*command, "--method", "source", "--batch-size", "5", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["predictions"], found["skipped"], found["guard"]) == (12, 1, None)


@pytest.mark.parametrize(
    ("options", "values"),
    [
        (["--strict"], ("broken.png", "strict")),
        (["--method", "tnt"], ("'tnt'", "'tent'")),
        (["--set", "rate=1"], ("'rate'",)),
        (["--classes", "nowhere.txt"], ("nowhere.txt",)),
        (["--source", "nowhere"], ("--source nowhere",)),
        (["--idle", "3"], ("--idle", "--follow")),
        (["--order", "size"], ("'size'",)),
        (["--format", "xlsx"], ("'xlsx'",)),
        (["--load-state", "nowhere"], ("nowhere",)),
    ],
)
def test_mistakes_are_refused(
    command: list[str], options: list[str], values: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    method = [] if "--method" in options else ["--method", "testdg_aligned"]
    refuses(capsys, [*command, *method, *options], *values)


@pytest.mark.usefixtures("interruptible")
def test_an_interrupted_stream_resumes(
    command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    command += ["--method", "tent", "--batch-size", "4"]
    with monkeypatch.context() as patch:
        patch.setattr(StreamScreen, "advanced", lambda *_: signal.raise_signal(signal.SIGINT))
        assert execute(command) == INTERRUPTED
    assert capsys.readouterr().err.count("\n") == 1
    assert not (tmp_path / "out" / SUMMARY).exists()
    assert execute(command) == 0
    assert "4 pictures are done already" in capsys.readouterr().out
