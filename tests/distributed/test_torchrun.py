"""`testdg run` in two processes of torchrun: its result is that of one, and a kill ends it with a sentence."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from testdg.cli.app import execute

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="Windows has no SIGKILL")
OPTIONS = [
    "run", "--method", "tent", "--images", "30", "--domains", "snow,fog,contrast",
    "--batch-size", "3", "--device", "cpu",
]  # fmt: skip
SCRIPT = """
import os
from testdg.evaluation.run import run
from testdg.methods.tent import Tent

run.__kwdefaults__["save_every"] = 0.0
if os.environ.get("DIES"):  # here, in the middle of a batch
    learn = Tent.step
    def step(self, images):
        if self.batches == 14 and os.environ["RANK"] == "1":
            os.kill(os.getpid(), 9)
        return learn(self, images)
    Tent.step = step

from testdg.cli.app import execute
raise SystemExit(execute())
"""


def torchrun(folder: Path, options: list[str], **environment: str) -> subprocess.CompletedProcess[str]:
    script = folder / "script.py"
    script.write_text(SCRIPT)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(script)]
    set_up = {**os.environ, "OMP_NUM_THREADS": "1", **environment}
    return subprocess.run([*command, *options], env=set_up, capture_output=True, text=True, timeout=300)


def said(run: subprocess.CompletedProcess[str]) -> list[str]:
    return [line for line in run.stderr.splitlines() if line.startswith("testdg")]


def events(out: Path) -> list[dict[str, Any]]:
    (path,) = out.glob("*-tent-*/events.jsonl")
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_killed_process_ends_the_run_and_the_same_command_goes_on(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = [*OPTIONS, "--model", str(model), "--out", str(tmp_path / "shared")]
    killed = torchrun(tmp_path, options, DIES="yes")
    assert killed.returncode != 0
    (sentence,) = said(killed)
    assert re.match(r"testdg: (another of the 2 processes has ended .*|interrupted;.*)last saved state$", sentence)
    assert len(events(tmp_path / "shared")) == 14
    assert not list((tmp_path / "shared").glob("*-tent-*/result.json"))

    resumed = torchrun(tmp_path, options)
    assert resumed.returncode == 0, resumed.stderr
    assert "TENT: 30 batches, 14 done already" in resumed.stdout
    assert resumed.stdout.count("Source: 30 batches") == 1  # the first process alone speaks

    assert execute([*options[:-1], str(tmp_path / "alone")]) == 0
    tables = [text[text.index("error, %") : text.index("run  ")] for text in (resumed.stdout, capsys.readouterr().out)]
    assert tables[0] == tables[1]
    for shared, alone in zip(events(tmp_path / "shared"), events(tmp_path / "alone"), strict=True):
        assert shared["errors"] == alone["errors"]
        assert shared["diagnostics"] == pytest.approx(alone["diagnostics"], abs=1e-5)


def test_other_commands_are_refused(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    for name, value in {"TORCHELASTIC_RUN_ID": "none", "WORLD_SIZE": "2", "RANK": "0"}.items():
        monkeypatch.setenv(name, value)
    assert execute(["bench", "--methods", "tent"]) == 2
    told = "testdg: torchrun shares one stream between processes, as in `testdg run`: start bench without it\n"
    assert capsys.readouterr().err == told
