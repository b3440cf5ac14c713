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

from testdg.runs import run

OPTIONS: dict[str, Any] = {
    "device": "cpu", "images": 14, "domains": ["gaussian_noise", "fog", "contrast"], "batch_size": 2, "save_every": 0.0,
}  # fmt: skip
SCRIPT = f"""
import sys
from testdg.runs import run
run("digits-c", "tent", model=sys.argv[1], out=sys.argv[2], **{OPTIONS!r})
"""


pytestmark = pytest.mark.usefixtures("one_thread")


def finish(model: Path, out: Path) -> tuple[dict[str, Any], bytes]:
    folder = run("digits-c", "tent", model=model, out=out, **OPTIONS).folder
    result = json.loads((folder / "result.json").read_text())
    del result["seconds"], result["checksum"]  # of the seconds, too
    return result, (folder / "events.jsonl").read_bytes()


def kill_after(model: Path, out: Path, lines: int) -> None:
    """Kill the process as soon as the run has written some events."""
    command = [sys.executable, "-c", SCRIPT, str(model), str(out)]
    process = subprocess.Popen(command, env={**os.environ, "OMP_NUM_THREADS": "1"})
    while process.poll() is None:
        if sum(path.read_bytes().count(b"\n") for path in out.glob("*/events.jsonl")) >= lines:
            process.send_signal(signal.SIGKILL)
        time.sleep(0.001)
    assert process.returncode == -signal.SIGKILL


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no SIGKILL")
def test_a_killed_run_ends_as_an_undisturbed_one(model_folder: Path, tmp_path: Path) -> None:
    undisturbed = finish(model_folder, tmp_path / "undisturbed")
    kill_after(model_folder, tmp_path / "killed", 9)
    assert not list((tmp_path / "killed").glob("*/result.json"))
    assert finish(model_folder, tmp_path / "killed") == undisturbed
