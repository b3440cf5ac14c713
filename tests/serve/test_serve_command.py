"""`testdg serve` as a process: kills, shutdown, signals, and invalid arguments."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from support.serving import digits, free_port, wait_for
from testdg.cli.app import execute

Launch = Callable[..., tuple[subprocess.Popen[str], httpx.Client]]


@pytest.fixture
def launch(shared_cache: Path, tmp_path: Path) -> Iterator[Launch]:
    """Start `testdg serve` and wait until it answers."""
    started: list[subprocess.Popen[str]] = []

    def start(*options: str, shell: str = "", **environment: str) -> tuple[subprocess.Popen[str], httpx.Client]:
        port = free_port()
        prefix = ["sh", "-c", shell] if shell else []
        command = [*prefix, sys.executable, "-c", "from testdg.cli import main; main()", "serve", "--demo"]
        process = subprocess.Popen(
            [*command, "--port", str(port), "--out", str(tmp_path / "out"), *options],
            env={**os.environ, **environment},
            stderr=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        client = httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=30)
        wait_for(lambda: process.poll() is not None or answers(client), 60)
        assert process.poll() is None, process.stderr.read() if process.stderr else ""
        return process, client

    yield start
    for process in started:
        process.kill()
        process.wait()


def answers(client: httpx.Client) -> bool:
    try:
        return client.get("/healthz").status_code == 200
    except httpx.TransportError:
        return False


def teach(client: httpx.Client, batches: int, start: int = 0) -> dict:
    for number in range(batches):
        files = [("p", data) for data in digits(32, "frost", start + 32 * number)]
        client.post("/predict", params={"stream": "cam", "wait": True}, files=files)
    return client.get("/state", params={"stream": "cam"}).json()


@pytest.mark.slow
def test_a_kill_loses_unsaved_learning_and_a_shutdown_loses_nothing(launch: Launch) -> None:
    process, client = launch()
    teach(client, 2)
    client.post("/snapshot", params={"stream": "cam"}, json={"reason": "now"})  # saves, too
    saved = client.get("/state", params={"stream": "cam"}).json()
    state = teach(client, 3, 64)
    assert state["learnt"] > saved["learnt"]
    time.sleep(1.5)  # until the counts are written
    process.send_signal(signal.SIGKILL)
    process.wait()

    process, client = launch()
    after = client.get("/state", params={"stream": "cam"}).json()
    lost = state["learnt"] - saved["learnt"]
    assert after["learnt"] == saved["learnt"]
    assert f"the server was killed: what it learnt from {lost} pictures after" in after["lost"]
    assert after["snapshots"] == [1]

    taught = teach(client, 2, 200)
    process.send_signal(signal.SIGTERM)
    assert process.wait(40) == 0
    process, client = launch()
    again = client.get("/state", params={"stream": "cam"}).json()
    assert {key: again[key] for key in ("learnt", "pictures", "steps", "lost")} == {
        **{key: taught[key] for key in ("learnt", "pictures", "steps")},
        "lost": "",
    }


def test_a_server_in_the_background_ignores_sigint_and_shuts_down_on_sigterm(launch: Launch) -> None:
    process, client = launch(shell='trap "" INT; exec "$0" "$@"')  # as nohup or & in a script start it
    before = teach(client, 2)
    process.send_signal(signal.SIGINT)
    time.sleep(0.5)
    assert client.get("/healthz").json()["status"] == "ok"
    process.send_signal(signal.SIGTERM)
    assert process.wait(40) == 0
    assert process.stderr is not None
    assert "everything is saved" in process.stderr.read()
    _, client = launch()
    assert client.get("/state", params={"stream": "cam"}).json()["learnt"] == before["learnt"]


@pytest.mark.usefixtures("interruptible")
def test_the_demonstration_plays_and_a_folder_has_one_server(launch: Launch, tmp_path: Path) -> None:
    secret = "a-long-secret-of-our-own"
    process, client = launch(TESTDG_TOKEN=secret)
    assert client.get("/state").status_code == 401
    client.headers["authorization"] = f"Bearer {secret}"
    wait_for(lambda: client.get("/state", params={"stream": "demo"}).json().get("pictures", 0) > 20)
    code = execute(["serve", "--demo", "--out", str(tmp_path / "out"), "--port", str(free_port())])
    assert code == 2
    process.send_signal(signal.SIGINT)
    assert process.wait(40) == 0
    assert process.stderr is not None
    log = process.stderr.read()
    assert "everything is saved" in log
    assert secret not in log


@pytest.mark.parametrize(
    ("options", "value"),
    [
        (["--demo", "--host", "0.0.0.0"], "TESTDG_TOKEN"),
        (["--model", "x", "--host", "example.com"], "TESTDG_TOKEN"),
        (["--demo", "--token-file", "missing"], "missing"),
        ([], "--model"),
        (["--demo", "--model", "x"], "--model"),
        (["--demo", "--source", "."], "--source"),
        (["--model", "./missing"], "missing"),
        (["--demo", "--method", "nonsense"], "nonsense"),
    ],
)
def test_invalid_arguments_are_reported_in_one_sentence(
    options: list[str], value: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TESTDG_TOKEN", raising=False)
    monkeypatch.chdir(tmp_path)
    assert execute(["serve", *options]) == 2
    message = capsys.readouterr().err
    assert value in message
    assert message.count("\n") == 1


def test_a_folder_of_another_server_is_refused(
    shared_cache: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "server.json").write_text('{"method": "tent"}')
    assert execute(["serve", "--demo", "--out", str(tmp_path), "--port", str(free_port())]) == 2
    assert "method" in capsys.readouterr().err
