"""`serve`: the server at an address, until it is asked to end."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from testdg.errors import UserError
from testdg.files import locked, writing
from testdg.runs.loop import graceful_interrupt
from testdg.serve.demo import play
from testdg.serve.factory import Factory
from testdg.serve.limits import Limits
from testdg.serve.security import Token, is_loopback
from testdg.serve.service import Service

if TYPE_CHECKING:
    import uvicorn


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where a server listens and what it keeps."""

    out: Path
    host: str = "127.0.0.1"
    port: int = 8000
    token: Token | None = None
    limits: Limits = field(default_factory=Limits)

    def check(self) -> None:
        """Refuse an address that others can reach without a token."""
        if not is_loopback(self.host) and self.token is None:
            raise UserError(
                f"--host {self.host} can be reached by others, and there is no token: set TESTDG_TOKEN or --token-file"
            )


def serve(factory: Factory, place: Place, *, demo: bool = False) -> list[str]:
    """Serve until SIGINT or SIGTERM; then learn from what waits, and save everything; says what could not be."""
    place.check()
    with writing(place.out):
        place.out.mkdir(parents=True, exist_ok=True)
    with locked(place.out / ".lock", f"another server uses {place.out}: stop it, or choose another folder with --out"):
        service = Service(factory, place.out, place.limits)
        server = make_server(service, place)
        players = [threading.Thread(target=play, args=(service,), name="demo", daemon=True)] if demo else []
        with graceful_interrupt():  # uvicorn sends itself the signal once more at its end
            return _run(service, server, players, place)


def _run(service: Service, server: uvicorn.Server, players: Sequence[threading.Thread], place: Place) -> list[str]:
    service.start()
    for player in players:
        player.start()
    try:
        server.run()
    except SystemExit as error:  # what uvicorn does where it cannot listen
        raise UserError(f"cannot listen at {place.host}:{place.port}: is the port in use?") from error
    finally:
        service.closing.set()
        for player in players:
            player.join(5)
        lost = service.close()
    return lost


def make_server(service: Service, place: Place) -> uvicorn.Server:
    """A server of uvicorn that hangs up on silent connections, and tells the pages when it is asked to end."""
    import uvicorn

    from testdg.serve.app import make_app

    class Server(uvicorn.Server):
        async def on_tick(self, counter: int) -> bool:
            silence.end(self.server_state.connections)
            return await super().on_tick(counter)

        def handle_exit(self, sig: int, frame: Any) -> None:
            service.closing.set()
            super().handle_exit(sig, frame)

    silence = _Silence(place.limits.head_seconds)
    config = uvicorn.Config(
        make_app(service, place.token),
        host=place.host,
        port=place.port,
        access_log=False,
        log_config=None,
        server_header=False,
        limit_concurrency=2 * place.limits.requests,
        timeout_keep_alive=15,
        timeout_graceful_shutdown=10,
        ws="none",
        lifespan="off",
    )
    return Server(config)


class _Silence:
    """Ends connections that are silent, or in the middle of a head, for too long: uvicorn would wait for ever."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._since: dict[Any, tuple[Any, float]] = {}

    def end(self, connections: Iterable[Any]) -> None:
        """Look at all connections, as often as you like; `cycle` is the last request of each."""
        now, there = time.monotonic(), {}
        for one in list(connections):
            request = one.cycle
            if request is None or request.response_complete:
                last, since = self._since.get(one, (None, now))
                there[one] = (request, since if last is request else now)
        self._since = there
        for one, (_, since) in there.items():
            if now - since > self.seconds:
                one.transport.close()
