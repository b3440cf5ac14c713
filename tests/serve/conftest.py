"""A small model of digits, a server around it, and pictures to send."""

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from support.serving import free_port
from testdg.runs.session import Session
from testdg.serve.demo import open_demo
from testdg.serve.limits import Limits
from testdg.serve.security import Token
from testdg.serve.server import Place, Server
from testdg.serve.service import Service


@pytest.fixture
def source(shared_cache: Path, tmp_path_factory: pytest.TempPathFactory) -> Session:
    """The model of the demonstration, which all tests share."""
    if not _MADE:
        _MADE.append(open_demo(tmp_path_factory.mktemp("demo"), None, None, "cpu"))
    return _MADE[0]


_MADE: list[Session] = []


@pytest.fixture
def start(source: Session, tmp_path: Path) -> Iterator[Callable[..., Service]]:
    """Start services in the same folder; they are closed after the test."""
    started: list[Service] = []

    def make(folder: Path | None = None, made: Session | None = None, **limits: float) -> Service:
        service = Service(made or source, folder or tmp_path / "out", Limits(**limits))
        service.start()
        started.append(service)
        return service

    yield make
    for service in started:
        if service.decoders._shutdown is False:  # not closed yet
            service.close()


@pytest.fixture
def listen(start: Callable[..., Service]) -> Iterator[Callable[..., httpx.Client]]:
    """Start servers and return their clients, with the service as `client.service`."""
    ends: list[Callable[[], None]] = []

    def make(token: Token | None = None, **limits: float) -> httpx.Client:
        service, port = start(**limits), free_port()
        server = Server(service, Place(out=service.storage.folder, port=port, token=token, limits=service.limits))
        thread = threading.Thread(target=server.run, daemon=True)
        thread.start()
        while not server.started:
            time.sleep(0.01)
        client = httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60)
        client.service = service  # type: ignore[attr-defined]

        def end() -> None:
            client.close()
            service.closing.set()  # as a signal does
            server.should_exit = True
            thread.join(15)
            assert not thread.is_alive()

        ends.append(end)
        return client

    yield make
    for end in ends:
        end()
