"""A browser without a window, controlled through a pipe (the DevTools protocol); it needs only chromium."""

import base64
import contextlib
import fcntl
import json
import os
import select
import shutil
import signal
from pathlib import Path
from typing import Any

PROGRAM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
_TIMEOUT = 60.0  # seconds for an answer


class Browser:
    """One page of one browser."""

    def __init__(self, profile: Path, width: int = 1280, height: int = 900) -> None:
        assert PROGRAM is not None
        ours = [_high(fd) for fd in os.pipe()], [_high(fd) for fd in os.pipe()]
        (reads, self._write), (self._read, writes) = ours
        options = ["--headless=new", "--remote-debugging-pipe", "--disable-gpu", "--no-first-run", "--hide-scrollbars"]
        options += ["--no-sandbox"] if os.geteuid() == 0 else []
        options += [f"--user-data-dir={profile}", f"--window-size={width},{height}", "about:blank"]
        actions: list[Any] = [(os.POSIX_SPAWN_DUP2, reads, 3), (os.POSIX_SPAWN_DUP2, writes, 4)]
        actions += [(os.POSIX_SPAWN_OPEN, fd, os.devnull, os.O_WRONLY, 0) for fd in (1, 2)]
        self._pid = os.posix_spawn(PROGRAM, [PROGRAM, *options], os.environ, file_actions=actions, setpgroup=0)
        os.close(reads)
        os.close(writes)
        self._number, self._rest, self._session = 0, b"", None
        self.events: list[dict[str, Any]] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def __enter__(self) -> "Browser":
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._pid, signal.SIGKILL)
        os.waitpid(self._pid, 0)
        os.close(self._read)
        os.close(self._write)

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """Call a method of the protocol and wait for its answer; store the events that arrive before."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": params}
        message |= {"sessionId": self._session} if self._session else {}
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while (answer := self._next()).get("id") != self._number:
            self.events.append(answer)
        assert "error" not in answer, answer
        found: dict[str, Any] = answer["result"]
        return found

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            ready, _, _ = select.select([self._read], [], [], _TIMEOUT)
            data = os.read(self._read, 1 << 16) if ready else b""
            assert data, "the browser gave no answer"
            self._rest += data
        line, _, self._rest = self._rest.partition(b"\0")
        message: dict[str, Any] = json.loads(line)
        return message

    def open(self, path: Path) -> None:
        """Open a page and wait until it is loaded."""
        self.call("Page.navigate", url=path.resolve().as_uri())
        while not any(event["method"] == "Page.loadEventFired" for event in self.events):
            self.events.append(self._next())

    def run(self, script: str) -> Any:
        """The value of an expression in the page."""
        found = self.call("Runtime.evaluate", expression=script, returnByValue=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def click(self, element: str) -> None:
        """Click in the middle of what an expression gives, with the mouse."""
        self.run(f"{element}.scrollIntoView({{block: 'center'}})")
        x, y = self.run(f"(r => [r.x + r.width / 2, r.y + r.height / 2])({element}.getBoundingClientRect())")
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def press_enter(self) -> None:
        """Press the enter key."""
        key = {"key": "Enter", "code": "Enter", "windowsVirtualKeyCode": 13}
        self.call("Input.dispatchKeyEvent", type="keyDown", text="\r", **key)
        self.call("Input.dispatchKeyEvent", type="keyUp", **key)

    def prefer(self, scheme: str) -> None:
        """Let the system ask for light or dark."""
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    def screenshot(self, path: Path) -> None:
        """Write a picture of the whole page."""
        found = self.call("Page.captureScreenshot", captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(found["data"]))

    def complaints(self) -> list[str]:
        """Errors and warnings of the page, and every address that it requested."""
        found = []
        for event in self.events:
            method, params = event["method"], event.get("params", {})
            if method == "Runtime.exceptionThrown" or (
                method == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning")
            ):
                found.append(json.dumps(params))
            if method == "Log.entryAdded" and params["entry"]["level"] in ("error", "warning"):
                found.append(params["entry"]["text"])
            if method == "Network.requestWillBeSent" and not params["request"]["url"].startswith(("data:", "file:")):
                found.append(params["request"]["url"])
        return found


def _high(number: int) -> int:
    """The same file under a number that is neither 3 nor 4, which the browser listens to."""
    found = fcntl.fcntl(number, fcntl.F_DUPFD_CLOEXEC, 10)
    os.close(number)
    return found
