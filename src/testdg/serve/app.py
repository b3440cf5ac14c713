"""The HTTP interface: an ASGI application with the routes of the server."""

import asyncio
import base64
import hashlib
import json
import re
import secrets
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from http import HTTPStatus
from importlib import resources
from typing import Any, TypeVar

from fastapi import Depends, FastAPI
from fastapi.exceptions import RequestValidationError
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.types import ASGIApp

import testdg
from testdg.data.pictures import Unreadable
from testdg.errors import UserError
from testdg.serve import api
from testdg.serve.limits import Refused
from testdg.serve.pictures import DecodedPicture, index_png
from testdg.serve.security import COOKIE, Gate, Token
from testdg.serve.service import Service
from testdg.serve.session import Counts, StreamSession
from testdg.serve.storage import check_name

T = TypeVar("T")
MAIN = "main"
PAGE = (resources.files("testdg.serve") / "page.html").read_text(encoding="utf-8")
_TICK = 1.0  # seconds between two events
_ACTIONS: dict[api.Action, str] = {
    "reset": "Return the model of a stream to the source.",
    "rollback": "Return it to a snapshot (`to`, else the last one), or to the last state that the guard found healthy.",
    "snapshot": "Save the model as it is now.",
    "freeze": "Predict without learning, or learn again (`frozen: false`).",
    "export": "Write the adapted model as an ordinary one into the folder of the server.",
}
_FILE = {"schema": {"type": "string", "format": "binary"}}
_FILES = {"schema": {"type": "object", "properties": {"pictures": {"type": "array", "items": _FILE["schema"]}}}}
_PICTURES = {
    "image/png": _FILE,
    "image/jpeg": _FILE,
    "multipart/form-data": _FILES,
    "application/json": {"schema": api.PicturesRequest.model_json_schema()},
}


def _problems(*statuses: int) -> dict[int | str, dict[str, Any]]:
    return {one: {"model": api.Problem, "description": HTTPStatus(one).phrase} for one in statuses}


def make_app(service: Service, token: Token | None = None) -> ASGIApp:
    """The application, with its gate around it."""
    app = FastAPI(
        title="testdg",
        version=testdg.__version__,
        description=api.ABOUT,
        docs_url=None,
        redoc_url=None,
        responses=_problems(400, 401, 403, 413, 503),
    )
    routes = Routes(service, token)
    app.get("/", include_in_schema=False)(routes.page)
    app.post(
        "/predict",
        response_model=api.Predictions,
        response_model_exclude_unset=True,
        responses={**_problems(422), 200: {"content": {"image/png": _FILE}}},
        openapi_extra={"requestBody": {"required": True, "content": _PICTURES}},
    )(routes.predict)
    for action, about in _ACTIONS.items():
        app.post(
            f"/{action}",
            name=action,
            description=about,
            response_model_exclude_unset=True,
            responses=_problems(404, 409),
        )(routes.action(action))
    app.get("/state", response_model_exclude_unset=True)(routes.state)
    app.get("/events", response_class=EventStream, dependencies=[Depends(routes.watching)])(routes.events)
    app.get("/metrics", response_class=PlainTextResponse)(routes.metrics)
    app.get("/healthz")(routes.health)
    app.post("/login")(routes.login)
    for kind in (UserError, HTTPException, TimeoutError, RequestValidationError, Exception):
        app.add_exception_handler(kind, _answer_error)
    return Gate(app, token, service.limits)


async def _answer_error(request: Request, error: BaseException) -> Response:
    if isinstance(error.__cause__, Refused):  # FastAPI replaces errors while it reads the body
        error = error.__cause__
    if isinstance(error, UserError):
        status, message, code = getattr(error, "status", 400), str(error), error.code
    elif isinstance(error, HTTPException):
        status, message = error.status_code, str(error.detail)
        code = HTTPStatus(status).phrase.lower().replace(" ", "-")
    elif isinstance(error, TimeoutError):
        status, message, code = 503, "the request took too long: try again later", "timeout"
    elif isinstance(error, RequestValidationError):
        wrong = error.errors()[0]
        status, message, code = 400, f"{wrong['loc'][-1]}: {wrong['msg']}", "bad-request"
    else:
        status, message, code = 500, "internal error: see the log of the server", "internal"
    headers = {"retry-after": "1"} if status == 503 else None
    return JSONResponse({"error": message, "code": code}, status, headers)


class EventStream(StreamingResponse):
    media_type = "text/event-stream"


class Routes:
    def __init__(self, service: Service, token: Token | None) -> None:
        self.service, self.token = service, token
        self.boot = secrets.token_hex(4)
        """Distinguishes the event numbers of this server from those of an earlier one."""
        self.watchers = 0
        self.registry = CollectorRegistry()
        self.registry.register(Metrics(service))

    async def _run(self, function: Callable[..., T], *values: Any) -> T:
        """Run a function that may wait on another thread."""
        return await asyncio.get_running_loop().run_in_executor(self.service.background, function, *values)

    # Predictions

    async def predict(self, request: Request, stream: str = MAIN, wait: bool = False) -> Any:
        """Predict pictures and queue them for learning.

        With `wait`, the answer comes after learning and has its outcome. With `Accept: image/png`, the answer to one
        picture of a segmentation is its map.
        """
        check_name(stream)
        files = await api.read_files(request, self.service.limits)
        costs = self.service.check(files)
        _require_readable(costs)
        pixels = sum(cost for cost in costs if isinstance(cost, int))
        async with asyncio.timeout(self.service.limits.seconds):
            with self.service.admitted(pixels) as reserve:
                read: list[DecodedPicture | Unreadable] = []
                decoding = self.service.decode(files, costs)
                try:
                    for future in decoding:
                        one = await asyncio.wrap_future(future)
                        if isinstance(one, DecodedPicture):
                            reserve(one.image.nbytes)
                        read.append(one)
                finally:  # also if the client has disconnected
                    for future in decoding:
                        future.cancel()
                _require_readable(read)
                async with self._using(stream) as session:
                    return await self._answer(session, read, wait, request.headers.get("accept", ""))

    @asynccontextmanager
    async def _using(self, name: str) -> AsyncIterator[StreamSession]:
        """A session, loaded on another thread if necessary."""
        pool = self.service.pool
        while (session := pool.acquire(name)) is None:
            await self._run(pool.load, name)
        try:
            yield session
        finally:
            pool.release(session)

    async def _answer(
        self, session: StreamSession, read: Sequence[DecodedPicture | Unreadable], wait: bool, accept: str
    ) -> api.Predictions | Response:
        service, pictures = self.service, [one for one in read if isinstance(one, DecodedPicture)]
        answers = await asyncio.wrap_future(service.batcher.predict(session, pictures))
        service.count(session, pictures, answers)
        learning, waiting = service.learner.offer(session, pictures, wait=wait)
        outcomes = [await asyncio.wrap_future(one) for one in waiting]
        if accept == "image/png":
            if answers[0].map is None or len(answers) > 1:
                message = "image/png is the answer to one picture of a segmentation: accept application/json"
                raise Refused(message, "not-a-map")
            data = index_png(answers[0].map, len(service.source.names))
            return Response(data, media_type="image/png")
        build = partial(api.Predictions.of, session, read, answers, learning, outcomes)
        return build() if answers[0].map is None else await self._run(build)

    # Actions

    def action(self, name: api.Action) -> Callable[..., Any]:
        async def act(body: api.ActionRequest, stream: str = MAIN) -> api.Done:
            return await self._run(self.service.act, stream, name, body)

        return act

    async def login(self, request: Request, body: api.LoginRequest, response: Response) -> api.LoggedIn:
        """Store a cookie for the page, in exchange for the token."""
        if self.token is not None and not self.token.matches(body.token):
            await asyncio.sleep(0.3)
            raise Refused("this is not the token", "wrong-token", 401)
        if self.token is not None:
            secure = request.url.scheme == "https"
            response.set_cookie(COOKIE, self.token.cookie, httponly=True, samesite="strict", secure=secure)
        return api.LoggedIn()

    # State

    async def page(self) -> Response:
        return Response(PAGE, media_type="text/html", headers={"content-security-policy": PAGE_POLICY})

    async def state(self, stream: str | None = None) -> api.StreamState | api.ServerState:
        """The state of the server, and of a stream if one is named."""
        return await self._run(self.service.state, stream)

    async def metrics(self) -> Response:
        """Metrics for Prometheus."""
        return Response(generate_latest(self.registry), media_type="text/plain; version=0.0.4")

    async def health(self) -> api.ServerHealth:
        """Health of the server; needs no token.

        The status is always 200: a restart would not help a server that continues in memory.
        """
        problems = self.service.problems()
        return api.ServerHealth(status="degraded" if problems else "ok", problems=problems)

    async def watching(self) -> AsyncIterator[None]:
        """Count the pages that receive events, from their admission to their end."""
        if self.watchers >= self.service.limits.watchers:
            raise Refused(f"{self.watchers} pages receive events, which is the limit", "overloaded", 503)
        self.watchers += 1
        try:
            yield
        finally:
            self.watchers -= 1

    async def events(self, request: Request, stream: str = MAIN) -> Response:
        """Server-sent events, one per second: what is new since `Last-Event-ID`, and the state."""
        check_name(stream)
        boot, _, number = request.headers.get("last-event-id", "")[:40].rpartition("-")
        last = int(number) if boot == self.boot and number.isdecimal() else 0
        return EventStream(self._events(stream, last))

    async def _events(self, name: str, number: int) -> AsyncIterator[str]:
        first = number == 0
        while not self.service.closing.is_set():
            event = await self._run(partial(self.service.events, name, number, load=first))
            number = event.pop("number")
            yield f"id: {self.boot}-{number}\ndata: {json.dumps({**event, 'first': first})}\n\n"
            first = False
            await asyncio.sleep(_TICK)


class Metrics:
    """Collector of the metrics for Prometheus. Streams that are on disk are left out."""

    def __init__(self, service: Service) -> None:
        self.service = service

    def collect(self) -> Iterator[Metric]:
        """Called by the registry for every request."""
        service, sessions = self.service, self.service.pool.resident()
        for key, field in Counts.model_fields.items():
            counter = CounterMetricFamily(f"testdg_{key}", field.description or "", labels=["stream"])
            for session in sessions:
                counter.add_metric([session.name], getattr(session.counts, key))
            yield counter
        decisions = CounterMetricFamily("testdg_guard_decisions", "Decisions of guards.", labels=["stream", "action"])
        for session in sessions:
            if (guard := session.online.guard) is not None:
                for action, count in guard.counts.items():
                    decisions.add_metric([session.name, action], count)
        yield decisions
        in_flight = service.batcher.in_flight + service.large_in_flight
        for key, about, value in (
            ("queue_pictures", "Pictures that wait for learning.", len(service.learner)),
            ("requests_waiting", "Requests in progress.", in_flight),
            ("streams_in_memory", "Streams in memory.", len(sessions)),
            ("streams", "Streams.", len(service.pool.names())),
            ("healthy", "1 if there are no problems, else 0.", int(not service.problems())),
            ("begun_timestamp_seconds", "Start of the server.", service.started),
        ):
            yield GaugeMetricFamily(f"testdg_{key}", about, value)
        about = "Requests that were refused because of overload."
        yield CounterMetricFamily("testdg_requests_refused", about, service.refused)


def _require_readable(read: Sequence[int | DecodedPicture | Unreadable]) -> None:
    """Refuse a request without any picture that can be read."""
    if isinstance(read[0], Unreadable) and all(isinstance(one, Unreadable) for one in read):
        raise Refused(str(read[0]), read[0].code, 422)


def _hashes(tag: str) -> str:
    parts = re.findall(rf"<{tag}>(.*?)</{tag}>", PAGE, re.DOTALL)
    digests = (base64.b64encode(hashlib.sha256(part.encode()).digest()).decode() for part in parts)
    return " ".join(f"'sha256-{digest}'" for digest in digests)


PAGE_POLICY = (
    f"default-src 'none'; script-src {_hashes('script')}; style-src {_hashes('style')}; img-src data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'"
)
"""Only the page's own script and style run, by their hashes; nothing else is loaded, and text cannot become markup."""
