"""What the OpenAPI description says, with examples."""

from typing import Any

ABOUT = """A vision model that adapts to what it sees, without labels.

Pictures are predicted at once, by the adapted model and by the source beside it; learning follows, on its own thread.
Every stream has an adapter of its own. A guard keeps the model from harm. Errors are `{"error": "one sentence"}`.
"""

_PREDICTION = {
    "class": "7",
    "class_index": 7,
    "confidence": 0.981204,
    "source_class": "1",
    "source_index": 1,
    "source_confidence": 0.412917,
    "differs": 1.0,
    "learnt": True,
    "reason": "",
}
_ANSWER = {
    "stream": "main",
    "change": False,
    "learning": "done",
    "last_learning": {"learnt": True, "reason": ""},
    "predictions": [_PREDICTION],
}
_ACTED = {"stream": "main", "action": "rollback", "done": "back to snapshot 2", "forgotten": 12}
_BINARY = {"schema": {"type": "string", "format": "binary"}}


def _answer(about: str, example: Any, kind: str = "application/json") -> dict[str, Any]:
    return {"description": about, "content": {kind: {"example": example}}}


def _error(about: str, sentence: str) -> dict[str, Any]:
    return _answer(about, {"error": sentence})


_ERRORS = {
    "400": _error("something in the request is wrong", 'a stream is named by up to 48 small letters ...; got "../x"'),
    "401": _error("no token, or a wrong one", "a token is needed: Authorization: Bearer TOKEN"),
    "403": _error("another site has sent it", "requests from other sites are refused"),
    "413": _error("too large", "a request may have 16777216 bytes at most"),
    "503": _error("too much to do", "256 requests are waiting, which is the most: come again"),
}


def _route(answer: dict[str, Any], errors: dict[str, Any] = _ERRORS, example: Any = None) -> dict[str, Any]:
    """The description of an address; one that takes JSON has an example of it."""
    told = {"responses": {"200": answer, **errors}}
    if example is None:
        return told
    content = {"application/json": {"schema": {"type": "object"}, "example": example}}
    return {"requestBody": {"required": True, "content": content}, **told}


def action(example: dict[str, Any]) -> dict[str, Any]:
    """The description of an action whose body may be like the example."""
    conflicts = {
        "404": _error("no such snapshot", "main has no snapshot 7; it has 1, 2"),
        "409": _error("not possible now", "main has no snapshot and no healthy state to go back to"),
    }
    return _route(_answer("It is done, and logged.", _ACTED), {**conflicts, **_ERRORS}, example)


def _pictures(kind: str) -> dict[str, Any]:
    items = {"type": "string", "format": kind}
    return {"schema": {"type": "object", "properties": {"pictures": {"type": "array", "items": items}}}}


PREDICT: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {
            "image/png": _BINARY,
            "image/jpeg": _BINARY,
            "multipart/form-data": _pictures("binary"),
            "application/json": {**_pictures("byte"), "example": {"pictures": ["iVBORw0KGgoAAAANSUhEUg..."]}},
        },
    },
    "responses": {
        "200": {
            "description": "Predictions in the order of the pictures; of a segmentation with `map`, an index PNG in "
            "base64, or that PNG alone where `Accept: image/png` asks for it.",
            "content": {"application/json": {"example": _ANSWER}, "image/png": _BINARY},
        },
        "422": _error("no picture of the request can be read", "it is neither PNG nor JPEG"),
        **_ERRORS,
    },
}
ACTIONS: dict[str, tuple[str, dict[str, Any]]] = {
    "reset": ("Put the model of a stream back to the source.", {"reason": "a new camera"}),
    "rollback": (
        "Put it back to a snapshot (`to`, else the last), or to the state that the guard last found healthy.",
        {"to": 2, "reason": "worse since noon"},
    ),
    "snapshot": ("Keep the model as it is now.", {"reason": "before the night"}),
    "freeze": (
        "Predict and learn nothing, or learn again (`frozen: false`).",
        {"frozen": True, "reason": "maintenance"},
    ),
    "export": (
        "Write the adapted model as an ordinary one, in the folder of the server.",
        {"reason": "for the other cameras"},
    ),
}
"""What can be done to a stream: what it does, and an example of its body."""
STATE = _route(_answer("State.", {"model": "mine", "streams": ["main"], "queue": 3, "pictures": 1200, "frozen": False}))
EVENTS = _route(
    _answer(
        "Server-sent events, one a second: what is new since `Last-Event-ID`, and the state.",
        'id: 1a2b-17\ndata: {"seconds": [], "marks": []}\n\n',
        "text/event-stream",
    )
)
HEALTH = _route(
    _answer(
        "`ok`, or `degraded`: it predicts and learns, and something is wrong. No token is needed to ask.",
        {"status": "degraded", "problems": ["states are not being saved: No space left on device"]},
    ),
    {},
)
METRICS = _route(
    _answer("The text format of Prometheus.", 'testdg_pictures_total{stream="main"} 1200\n', "text/plain"), {}
)
LOGIN = _route(_answer("A cookie that no script can read.", {"status": "ok"}), example={"token": "..."})
