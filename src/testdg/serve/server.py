"""`serve`: the server at an address, until SIGINT or SIGTERM."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

import uvicorn

from testdg.errors import UserError
from testdg.files import locked, writing
from testdg.runs.session import Session
from testdg.serve.app import make_app
from testdg.serve.demo import play
from testdg.serve.limits import Limits
from testdg.serve.security import Token, is_loopback
from testdg.serve.service import Service

_GRACE = 3  # seconds that requests in progress may take after a signal


@dataclass(frozen=True, kw_only=True)
class Place:
    """Folder, address and limits of a server."""

    out: Path
    host: str = "127.0.0.1"
    port: int = 8000
    token: Token | None = None
    limits: Limits = field(default_factory=Limits)

    def check(self) -> None:
        """Refuse an address that others can reach without a token."""
        if not is_loopback(self.host) and self.token is None:
            message = f"--host {self.host} is reachable from other machines: set TESTDG_TOKEN or --token-file"
            raise UserError(message, "no-token")


def serve(source: Session, place: Place, *, demo: bool = False) -> list[str]:
    """Serve until SIGINT or SIGTERM, then learn from queued pictures and save; returns sentences about losses."""
    place.check()
    with writing(place.out):
        place.out.mkdir(parents=True, exist_ok=True)
    busy = f"another server uses {place.out}: stop it, or choose another folder with --out"
    with locked(place.out / ".lock", busy):
        service = Service(source, place.out, place.limits)
        server = Server(service, place)
        player = threading.Thread(target=play, args=(service,), name="demo", daemon=True)
        service.start()
        if demo:
            player.start()
        try:
            server.run()
        except SystemExit as error:  # from uvicorn
            message = f"cannot listen at {place.host}:{place.port}: is the port in use?"
            raise UserError(message, "cannot-listen") from error
        finally:
            service.closing.set()
            if demo:
                player.join(5)
            lost = service.close()
        return lost


class Server(uvicorn.Server):
    """A server of uvicorn that closes silent connections and leaves ignored signals ignored."""

    def __init__(self, service: Service, place: Place) -> None:
        self.service = service
        self._head_seconds = place.limits.head_seconds
        self._waiting: dict[Any, tuple[Any, float]] = {}
        """Connections between requests, with their last request and the time since when they wait."""
        config = uvicorn.Config(
            make_app(service, place.token),
            host=place.host,
            port=place.port,
            access_log=False,
            log_config=None,
            server_header=False,
            limit_concurrency=2 * place.limits.requests,
            timeout_keep_alive=15,
            timeout_graceful_shutdown=_GRACE,
            http="h11",  # whose connections `on_tick` understands
            ws="none",
            lifespan="off",
        )
        super().__init__(config)

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Handle SIGINT and SIGTERM while the server runs.

        Unlike uvicorn's version, this one leaves a signal that the parent process ignores (SIGINT after
        `nohup` or `&` in a script) ignored, and does not send the signal again at the end: the end is then in order.
        """
        handlers = {}
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                if signal.getsignal(number) is not signal.SIG_IGN:
                    handlers[number] = signal.signal(number, self.handle_exit)
        try:
            yield
        finally:
            for number, handler in handlers.items():
                signal.signal(number, handler)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self.service.closing.set()
        super().handle_exit(sig, frame)

    async def on_tick(self, counter: int) -> bool:
        """Close connections that do not finish the head of a request in time, for which uvicorn would wait forever.

        Uvicorn calls this every tenth of a second. `cycle` is the last request of a connection.
        """
        now, waiting = time.monotonic(), {}
        connections: list[Any] = list(self.server_state.connections)
        for one in connections:
            request = one.cycle
            if request is None or request.response_complete:
                last, since = self._waiting.get(one, (None, now))
                waiting[one] = (request, since if last is request else now)
        self._waiting = waiting
        for one, (_, since) in waiting.items():
            if now - since > self._head_seconds:
                one.transport.close()
        return await super().on_tick(counter)
