"""A run that is killed at any moment ends, when started again, as if nothing had happened."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

SCRIPT = """
import sys
from testdg.evaluation import run
print(run("digits-c", "tent", model=sys.argv[1], out=sys.argv[2], device="cpu", images=14,
          domains=["gaussian_noise", "fog", "contrast"], batch_size=2, save_every=0.0).folder)
"""


def start(model: Path, out: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", SCRIPT, str(model), str(out)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})


def finish(model: Path, out: Path) -> tuple[dict[str, Any], bytes]:
    process = start(model, out)
    folder = Path(process.communicate(timeout=120)[0].strip())
    assert process.returncode == 0
    result = json.loads((folder / "result.json").read_text())
    del result["seconds"]
    return result, (folder / "events.jsonl").read_bytes()


def kill_after(model: Path, out: Path, lines: int) -> None:
    """Kill the process as soon as the run has written some events."""
    process = start(model, out)
    while process.poll() is None:
        if sum(path.read_bytes().count(b"\n") for path in out.glob("*/events.jsonl")) >= lines:
            process.send_signal(signal.SIGKILL)
        time.sleep(0.001)
    process.communicate()
    assert process.returncode == -signal.SIGKILL


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no SIGKILL")
def test_a_killed_run_ends_as_an_undisturbed_one(model_folder: Path, tmp_path: Path) -> None:
    undisturbed = finish(model_folder, tmp_path / "undisturbed")
    kill_after(model_folder, tmp_path / "killed", 9)
    assert not list((tmp_path / "killed").glob("*/result.json"))
    assert finish(model_folder, tmp_path / "killed") == undisturbed
