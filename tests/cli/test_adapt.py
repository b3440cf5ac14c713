"""`testdg adapt` on the command line."""

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from testdg.cli.app import INTERRUPTED, execute
from testdg.runs import run as streaming_run


@pytest.fixture
def frames(tmp_path: Path) -> Path:
    folder = tmp_path / "frames"
    folder.mkdir()
    for number in range(12):
        pixels = np.random.default_rng(number).integers(0, 256, (20, 30, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / f"{number}.png")
    (folder / "\x1b[2Jbroken.png").write_bytes(b"broken")
    return folder


def adapt(frames: Path, model: Path, out: Path, *more: str) -> int:
    return execute(["adapt", str(frames), "--model", str(model), "--out", str(out), "--device", "cpu", *more])


def test_what_came_out_is_shown(frames: Path, model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert adapt(frames, model, tmp_path / "out", "--set", "source_images=64") == 0
    shown = capsys.readouterr().out
    assert "no --source: the first 64 pictures stand for the clean ones" in " ".join(shown.split())
    assert "left out: \\x1b[2Jbroken.png: no image format fits it" in shown
    assert "12 predicted, 1 left out" in shown
    assert "testdg_aligned on random-vit" in shown
    assert "\x1b" not in shown
    assert (tmp_path / "out" / "predictions.csv").read_text().count("\n") == 13


def test_json_is_all_that_stdout_gets(
    frames: Path, model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert adapt(frames, model, tmp_path / "out", "--method", "source", "--batch-size", "5", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["predictions"], found["skipped"], found["guard"]) == (12, 1, None)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--strict"], "without strict it would be skipped"),
        (["--method", "tnt"], "did you mean 'tent'?"),
        (["--set", "rate=1"], "unknown setting 'rate'"),
        (["--classes", "nowhere.txt"], "nowhere.txt is not a list"),
        (["--source", "nowhere"], "--source nowhere is not a folder"),
        (["--idle", "3"], "use it with --follow"),
        (["--order", "size"], "unknown order 'size'"),
        (["--format", "xlsx"], "unknown format 'xlsx'"),
        (["--load-state", "nowhere"], "nowhere is no saved state"),
    ],
)
def test_mistakes_are_one_sentence(
    frames: Path, model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], options: list[str], told: str
) -> None:
    method = [] if "--method" in options else ["--method", "testdg_aligned"]
    assert adapt(frames, model, tmp_path / "out", *method, *options) == 2
    error = capsys.readouterr().err
    assert told in error
    assert error.count("\n") == 1


def test_ctrl_c_says_how_to_go_on(
    frames: Path, model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from testdg.cli.pictures import Screen

    def stop(self: Screen, *_: object) -> None:
        import signal

        signal.raise_signal(signal.SIGINT)

    with monkeypatch.context() as patched:
        patched.setattr(Screen, "answered", stop)
        assert adapt(frames, model, tmp_path / "out", "--method", "tent", "--batch-size", "4") == INTERRUPTED
    assert "goes on from the last saved state" in capsys.readouterr().err
    assert not (tmp_path / "out" / streaming_run.SUMMARY).exists()
    assert adapt(frames, model, tmp_path / "out", "--method", "tent", "--batch-size", "4") == 0
    assert "pictures are done already" in capsys.readouterr().out
