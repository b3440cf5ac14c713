"""Who may ask: this machine, or whoever has the token; from the page itself, and in bounded portions."""

import asyncio
import hashlib
import hmac
import ipaddress
import json
import os
import stat
import time
from collections.abc import Mapping
from http.cookies import CookieError, SimpleCookie
from pathlib import Path
from urllib.parse import SplitResult, urlsplit

from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from testdg.bounds import read_text
from testdg.errors import UserError
from testdg.serve.limits import Limits, Refused

COOKIE = "testdg"
_LEAST = 16  # characters of a token
_OPEN = {("GET", "/"), ("HEAD", "/"), ("GET", "/healthz"), ("POST", "/login")}
_HEADERS = {
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "x-frame-options": "DENY",
    "cache-control": "no-store",
    "content-security-policy": "default-src 'none'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'",
}
"""Of every answer that does not say otherwise."""


class Token:
    """A secret that is compared in constant time; what the cookie holds is made from it, and is not the token."""

    def __init__(self, value: str) -> None:
        if len(value) < _LEAST or not value.isascii() or not value.isprintable():
            raise UserError(f"a token must have {_LEAST} or more plain characters: make one with openssl rand -hex 24")
        self._value = value.encode()
        self.cookie = hmac.new(self._value, b"testdg page", hashlib.sha256).hexdigest()

    def fits(self, given: str) -> bool:
        """Whether somebody knows it."""
        return hmac.compare_digest(self._value, given.encode(errors="replace"))

    def fits_cookie(self, given: str) -> bool:
        """Whether somebody has logged in."""
        return hmac.compare_digest(self.cookie.encode(), given.encode(errors="replace"))


def find_token(file: Path | None) -> Token | None:
    """The token of a file that nobody else can read, or that of TESTDG_TOKEN; None where there is none."""
    if file is None:
        value = os.environ.get("TESTDG_TOKEN")
        return None if value is None else Token(value.strip())
    try:
        if os.name == "posix" and file.stat().st_mode & (stat.S_IRGRP | stat.S_IROTH):
            raise UserError(f"others can read the token in {file}: chmod 600 {file}")
        return Token(read_text(file, 4096).strip())
    except UserError:
        raise
    except (OSError, ValueError) as error:
        raise UserError(f"the token in {file} cannot be read: {error}") from error


def is_loopback(host: str) -> bool:
    """Whether an address can be reached from this machine alone."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


class Gate:
    """Stands before the application: addresses, sites, token, size and time of the body; headers of the answers."""

    def __init__(self, app: ASGIApp, token: Token | None, limits: Limits) -> None:
        self.app, self.token, self.limits = app, token, limits
        self.held = 0
        """Bytes of the requests that are being read or answered."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let a request through, or refuse it."""
        if scope["type"] == "lifespan":
            return await self.app(scope, receive, send)
        if scope["type"] != "http":  # nothing here speaks web sockets
            return await send({"type": "websocket.close", "code": 1008})
        body, begun = _Body(receive, self), False

        async def answer(message: Message) -> None:
            nonlocal begun
            if message["type"] == "http.response.start":
                begun = True
                there = {key.lower() for key, _ in message["headers"]}
                more = [(k.encode(), v.encode()) for k, v in _HEADERS.items() if k.encode() not in there]
                message["headers"] = [*message["headers"], *more]
            await send(message)

        try:
            self.check(scope)
            await self.app(scope, body.receive, answer)
        except Refused as refused:
            if not begun:
                headers = {"connection": "close"} if refused.status in (408, 413) else None
                told = Response(json.dumps({"error": str(refused)}), refused.status, headers, "application/json")
                await told(scope, receive, answer)
        finally:
            self.held -= body.bytes

    def check(self, scope: Scope) -> None:
        """Refuse a request by its head."""
        headers = {key.decode("latin-1"): value.decode("latin-1") for key, value in scope["headers"]}
        place = scope["method"], scope["path"]
        host = headers.get("host", "")
        if self.token is None and not is_loopback(_parts(f"//{host}").hostname or ""):
            raise Refused("this server answers at its own address alone", 403)
        site, origin = headers.get("sec-fetch-site", "none"), headers.get("origin")
        foreign = site not in ("none", "same-origin") and place != ("GET", "/")  # a link to the page is fine
        if foreign or (origin is not None and _parts(origin).netloc.lower() != host.lower()):
            raise Refused("requests from other sites are refused", 403)
        length = headers.get("content-length", "0")
        if not length.isdecimal() or int(length) > self.limits.body:
            raise Refused(f"a request may have {self.limits.body} bytes at most", 413)
        if self.token is not None and place not in _OPEN and not self._known(headers):
            raise Refused("a token is needed: Authorization: Bearer TOKEN", 401)

    def _known(self, headers: Mapping[str, str]) -> bool:
        assert self.token is not None
        kind, _, value = headers.get("authorization", "").partition(" ")
        if kind.lower() == "bearer":
            return self.token.fits(value.strip())
        try:
            morsel = SimpleCookie(headers.get("cookie", "")).get(COOKIE)
        except CookieError:
            return False
        return morsel is not None and self.token.fits_cookie(morsel.value)


class _Body:
    """Counts the bytes of a request, and the seconds that they take."""

    def __init__(self, receive: Receive, gate: Gate) -> None:
        self._receive, self.gate, self.limits = receive, gate, gate.limits
        self.bytes, self._until, self._whole = 0, time.monotonic() + gate.limits.seconds, False

    async def receive(self) -> Message:
        """The next part."""
        if self._whole:
            return await self._receive()
        try:
            message = await asyncio.wait_for(self._receive(), max(0.0, self._until - time.monotonic()))
        except TimeoutError:
            raise Refused(f"the request took more than {self.limits.seconds:g} seconds to arrive", 408) from None
        more = len(message.get("body", b""))
        self.bytes += more
        self.gate.held += more
        if self.bytes > self.limits.body:
            raise Refused(f"a request may have {self.limits.body} bytes at most", 413)
        if self.gate.held > self.limits.bodies:
            raise Refused("too much is being read at one time: come again", 503)
        self._whole = not message.get("more_body", False)
        return message


def _parts(address: str) -> SplitResult:
    """The parts of an address; all are empty where it is none."""
    try:
        return urlsplit(address)
    except ValueError:
        return urlsplit("")
