"""Access control: requests come from this machine or have the token, not from other sites, and have limited size."""

import asyncio
import hashlib
import hmac
import ipaddress
import os
import stat
import time
from pathlib import Path
from urllib.parse import urlsplit

from starlette.datastructures import MutableHeaders
from starlette.requests import HTTPConnection
from starlette.responses import JSONResponse
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
"""Defaults for the headers of all answers."""


class Token:
    """A secret that is compared in constant time. The cookie of the page is derived from it."""

    def __init__(self, value: str) -> None:
        if len(value) < _LEAST or not value.isascii() or not value.isprintable():
            message = f"a token must have {_LEAST} or more printable ASCII characters: use `openssl rand -hex 24`"
            raise UserError(message, "weak-token")
        self._value = value.encode()
        self.cookie = hmac.new(self._value, b"testdg page", hashlib.sha256).hexdigest()

    def matches(self, value: str) -> bool:
        return hmac.compare_digest(self._value, value.encode(errors="replace"))

    def authorizes(self, request: HTTPConnection) -> bool:
        """Whether a request has the token in its Authorization header, or the cookie of the page."""
        kind, _, value = request.headers.get("authorization", "").partition(" ")
        if kind.lower() == "bearer":
            return self.matches(value.strip())
        cookie = request.cookies.get(COOKIE, "")
        return hmac.compare_digest(self.cookie.encode(), cookie.encode(errors="replace"))


def find_token(file: Path | None) -> Token | None:
    """The token in the file, which other users must not be able to read; without a file, TESTDG_TOKEN or None."""
    if file is None:
        value = os.environ.get("TESTDG_TOKEN")
        return None if value is None else Token(value.strip())
    try:
        if os.name == "posix" and file.stat().st_mode & (stat.S_IRGRP | stat.S_IROTH):
            raise UserError(f"other users can read the token in {file}: chmod 600 {file}", "exposed-token")
        return Token(read_text(file, 4096).strip())
    except UserError:
        raise
    except (OSError, ValueError) as error:
        raise UserError(f"the token in {file} cannot be read: {error}", "unreadable-token") from error


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach an address."""
    try:
        return host == "localhost" or ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


class Gate:
    """Middleware around the application: checks host, site and token, limits bodies, and sets headers.

    Starlette's TrustedHostMiddleware cannot check the host for us: it needs a list of names, cannot allow all loopback
    addresses, and does not answer in JSON.
    """

    def __init__(self, app: ASGIApp, token: Token | None, limits: Limits) -> None:
        self.app, self.token, self.limits = app, token, limits
        self.bytes_in_progress = 0
        """Bytes of the bodies of all requests in progress."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            return await self.app(scope, receive, send)
        if scope["type"] != "http":  # web sockets
            return await send({"type": "websocket.close", "code": 1008})
        received, complete, deadline = 0, False, time.monotonic() + self.limits.seconds

        async def receive_part() -> Message:
            nonlocal received, complete
            if complete:
                return await receive()
            try:
                message = await asyncio.wait_for(receive(), max(0.0, deadline - time.monotonic()))
            except TimeoutError:
                seconds = f"{self.limits.seconds:g}"
                raise Refused(f"receiving the request took more than {seconds} seconds", "slow-request", 408) from None
            size = len(message.get("body", b""))
            received += size
            self.bytes_in_progress += size
            self._check_size(received, scope["path"])
            if self.bytes_in_progress > self.limits.bodies:
                raise Refused("the requests in progress are too large together: try again later", "overloaded", 503)
            complete = not message.get("more_body", False)
            return message

        async def send_part(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for key, value in _HEADERS.items():
                    headers.setdefault(key, value)
            await send(message)

        try:
            self.check(HTTPConnection(scope), scope["method"])
            await self.app(scope, receive_part, send_part)
        except Refused as refused:
            headers = {"connection": "close"} if refused.status == 413 else None
            content = {"error": str(refused), "code": refused.code}
            await JSONResponse(content, refused.status, headers)(scope, receive, send_part)
        finally:
            self.bytes_in_progress -= received

    def check(self, request: HTTPConnection, method: str) -> None:
        """Refuse a request by its headers, before its body is read.

        A page of another site can make the user's browser send requests to this server. The browser reports that site
        in Origin and Sec-Fetch-Site; only following a link to the page is allowed. A site whose name is made to point
        to this machine (DNS rebinding) is recognised by its Host, unless a token protects the server anyway.
        """
        headers, path = request.headers, request.scope["path"]
        host, origin, site = headers.get("host", ""), headers.get("origin"), headers.get("sec-fetch-site", "none")
        try:
            hostname, sender = urlsplit(f"//{host}").hostname or "", urlsplit(origin or f"//{host}").netloc.lower()
        except ValueError:
            raise Refused("the host or the origin of the request is not an address", "foreign-request", 403) from None
        if self.token is None and not is_loopback(hostname):
            raise Refused("without a token, requests must address this machine as localhost", "foreign-host", 403)
        followed_link = (method, path) == ("GET", "/")
        if sender != host.lower() or (site not in ("none", "same-origin") and not followed_link):
            raise Refused("requests from other sites are refused", "foreign-request", 403)
        length = headers.get("content-length", "0")
        self._check_size(int(length[:20]) if length.isdecimal() else self.limits.body + 1, path)
        if self.token is not None and (method, path) not in _OPEN and not self.token.authorizes(request):
            raise Refused("the request needs a token: Authorization: Bearer TOKEN", "no-token", 401)

    def _check_size(self, size: int, path: str) -> None:
        most = self.limits.body if path == "/predict" else min(self.limits.control_body, self.limits.body)
        if size > most:
            raise Refused(f"the limit for a request is {most} bytes", "large-request", 413)
