"""The address: routes of the server, as an application for uvicorn."""

import asyncio
import base64
import hashlib
import json
import re
import secrets
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Executor, Future
from contextlib import asynccontextmanager
from functools import partial
from importlib import resources
from typing import Any, TypeVar

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.types import ASGIApp, Receive, Scope, Send

import testdg
from testdg.errors import UserError
from testdg.runs.predictor import Both
from testdg.serve import texts
from testdg.serve.bodies import answer_json, read_action, read_files, read_json
from testdg.serve.limits import Refused
from testdg.serve.metrics import metrics
from testdg.serve.pictures import Picture, index_png
from testdg.serve.security import COOKIE, Gate, Token
from testdg.serve.service import Service
from testdg.serve.stream import Stream
from testdg.serve.streams import check_name

T = TypeVar("T")
MAIN = "main"
PAGE = (resources.files("testdg.serve") / "page.html").read_text(encoding="utf-8")
"""One file, no network."""
_TICK = 1.0  # seconds between two messages to a page


def _hashes(tag: str) -> str:
    parts = re.findall(rf"<{tag}>(.*?)</{tag}>", PAGE, re.DOTALL)
    digests = (base64.b64encode(hashlib.sha256(part.encode()).digest()).decode() for part in parts)
    return " ".join(f"'sha256-{digest}'" for digest in digests)


PAGE_POLICY = (
    f"default-src 'none'; script-src {_hashes('script')}; style-src {_hashes('style')}; img-src data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'"
)
"""Its own script and style run, by their hashes; nothing else runs or is fetched, and no text can become markup."""


def make_app(service: Service, token: Token | None = None) -> ASGIApp:
    """The application behind its gate."""
    app = FastAPI(
        title="testdg", version=testdg.__version__, description=texts.ABOUT, docs_url=None, redoc_url=None, debug=False
    )
    routes = Routes(service, token)
    app.get("/", include_in_schema=False)(routes.page)
    app.post("/predict", openapi_extra=texts.PREDICT)(routes.predict)
    for action, (about, example) in texts.ACTIONS.items():
        extra = texts.action(example)
        app.post(f"/{action}", name=action, description=about, openapi_extra=extra)(routes.action(action))
    app.get("/state", openapi_extra=texts.STATE)(routes.state)
    app.get("/events", openapi_extra=texts.EVENTS)(routes.events)
    app.get("/metrics", openapi_extra=texts.METRICS)(routes.metrics)
    app.get("/healthz", openapi_extra=texts.HEALTH)(routes.health)
    app.post("/login", openapi_extra=texts.LOGIN)(routes.login)
    for kind in (UserError, HTTPException, TimeoutError, RequestValidationError, Exception):
        app.add_exception_handler(kind, _told)
    return Gate(app, token, service.limits)


async def _told(request: Request, error: Exception) -> Response:
    """Whatever was wrong, as one sentence."""
    if isinstance(error, HTTPException):
        return _error(error.status_code, str(error.detail))
    if isinstance(error, TimeoutError):
        return _error(503, "it took too long: come again")
    if isinstance(error, RequestValidationError):
        wrong = error.errors()[0]
        return _error(400, f"{wrong['loc'][-1]}: {wrong['msg']}")
    if isinstance(error, UserError):
        return _error(getattr(error, "status", 400), str(error))
    return _error(500, "a mistake of the server: its log says more")


def _given_back(give: Callable[[T], None], done: Future[T]) -> None:
    if not done.cancelled() and done.exception() is None:
        give(done.result())


def _error(status: int, sentence: str) -> Response:
    return JSONResponse({"error": sentence}, status, {"retry-after": "1"} if status == 503 else None)


class Routes:
    """What each address does."""

    def __init__(self, service: Service, token: Token | None) -> None:
        self.service, self.token = service, token
        self.boot = secrets.token_hex(4)
        self.watchers = 0

    async def _run(self, function: Callable[..., T], *values: Any) -> T:
        """Call what may take a while on a thread."""
        return await asyncio.get_running_loop().run_in_executor(self.service.errands, function, *values)

    @asynccontextmanager
    async def _holding(self, pool: Executor, take: Callable[..., T], give: Callable[[T], None], *values: Any) -> Any:
        """Something that a thread takes, until it is given back; at once, if nobody waits for the thread any more."""
        taken = pool.submit(take, *values)
        try:
            found = await asyncio.wrap_future(taken)
        except asyncio.CancelledError:
            taken.add_done_callback(partial(_given_back, give))
            raise
        try:
            yield found
        finally:
            give(found)

    # Predictions

    async def predict(self, request: Request, stream: str = MAIN, wait: bool = False) -> Response:
        """Predict pictures; they are learnt from afterwards. `wait` until that is done to hear what came of it."""
        service = self.service
        check_name(stream)
        files = await read_files(request, service.limits)
        with service.admitted():
            accept = request.headers.get("accept", "")
            reading = self._holding(service.workers, service.read, service.let_go, files)
            async with asyncio.timeout(service.limits.seconds), reading as read:
                if not any(isinstance(one, Picture) for one in read):
                    return _error(422, str(read[0]))
                async with self._entered(stream) as found:
                    return await self._answer(found, read, wait, accept)

    @asynccontextmanager
    async def _entered(self, name: str) -> AsyncIterator[Stream]:
        """A stream, at once where it is in memory."""
        streams = self.service.streams
        if (found := streams.at_hand(name)) is not None:
            try:
                yield found
            finally:
                streams.leave(found)
        else:
            async with self._holding(self.service.errands, streams.enter, streams.leave, name) as found:
                yield found

    async def _answer(self, stream: Stream, read: list[Picture | str], wait: bool, accept: str) -> Response:
        service, good = self.service, [one for one in read if isinstance(one, Picture)]
        answers = await asyncio.wrap_future(service.batcher.ask(stream, good))
        service.note(stream, good, answers)
        learning, waiting = service.learn(stream, good, wait=wait)
        fates = [await asyncio.wrap_future(one) for one in waiting]
        if accept == "image/png":
            return self._map(answers)
        told = partial(answer_json, stream, read, answers, learning, fates)
        return JSONResponse(told() if answers[0].own.map is None else await self._run(told))

    def _map(self, answers: list[Both]) -> Response:
        values = answers[0].own.map
        if values is None or len(answers) > 1:
            raise Refused("image/png is the answer to one picture, of a segmentation: accept application/json")
        return Response(index_png(values, len(self.service.factory.names)), media_type="image/png")

    # Actions

    def action(self, name: str) -> Callable[..., Any]:
        """The route of an action."""

        async def act(request: Request, stream: str = MAIN) -> Response:
            values, reason = await read_action(request, self.service.limits)
            return JSONResponse(await self._run(self.service.act, stream, name, values, reason))

        return act

    async def login(self, request: Request) -> Response:
        """Keep the token in a cookie, for the page."""
        given = (await read_json(request, self.service.limits)).get("token")
        if self.token is None:
            return JSONResponse({"status": "ok"})
        if not isinstance(given, str) or not self.token.fits(given):
            await asyncio.sleep(0.3)
            return _error(401, "this is not the token")
        response = JSONResponse({"status": "ok"})
        secure = request.url.scheme == "https"
        response.set_cookie(COOKIE, self.token.cookie, httponly=True, samesite="strict", secure=secure)
        return response

    # What there is to see

    async def page(self) -> Response:
        """The page."""
        return Response(PAGE, media_type="text/html", headers={"content-security-policy": PAGE_POLICY})

    async def state(self, stream: str | None = None) -> Response:
        """The server, and a stream if one is named."""
        return JSONResponse(await self._run(self.service.state, stream))

    async def metrics(self) -> Response:
        """The numbers for Prometheus."""
        return Response(metrics(self.service), media_type="text/plain; version=0.0.4")

    async def health(self) -> Response:
        """Whether all is well; always 200, since a restart would not help a server that goes on in memory."""
        problems = self.service.problems()
        return JSONResponse({"status": "degraded" if problems else "ok", "problems": problems})

    async def events(self, request: Request, stream: str = MAIN) -> Response:
        """What happens in a stream, as server-sent events; a lost connection goes on after `Last-Event-ID`."""
        check_name(stream)
        if self.watchers >= self.service.limits.watchers:
            raise Refused(f"{self.watchers} pages are watching, which is the most", 503)
        boot, _, number = request.headers.get("last-event-id", "")[:40].rpartition("-")
        last = int(number) if boot == self.boot and number.isdecimal() else 0
        return _Watched(self, self._watch(stream, last), media_type="text/event-stream")

    async def _watch(self, name: str, number: int) -> AsyncIterator[str]:
        first = number == 0
        while not self.service.closing.is_set():
            told = await self._run(partial(self.service.news, name, number, load=first))
            number = told.pop("number")
            yield f"id: {self.boot}-{number}\ndata: {json.dumps({**told, 'first': first})}\n\n"
            first = False
            await asyncio.sleep(_TICK)


class _Watched(StreamingResponse):
    """Counts the pages that are watching, from the moment that one is let in."""

    def __init__(self, routes: Routes, content: AsyncIterator[str], **options: Any) -> None:
        super().__init__(content, **options)
        self.routes = routes
        routes.watchers += 1

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send what happens until somebody hangs up."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            self.routes.watchers -= 1
