"""What the OpenAPI description says, with examples."""

from __future__ import annotations

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


def _json(example: Any, about: str) -> dict[str, Any]:
    return {"description": about, "content": {"application/json": {"example": example}}}


def _error(sentence: str, about: str) -> dict[str, Any]:
    return _json({"error": sentence}, about)


_ERRORS = {
    "400": _error('a stream is named by up to 48 small letters ...; got "../x"', "something in the request is wrong"),
    "401": _error("a token is needed: Authorization: Bearer TOKEN", "no token, or a wrong one"),
    "403": _error("requests from other sites are refused", "another site has sent it"),
    "413": _error("a request may have 16777216 bytes at most", "too large"),
    "503": _error("256 requests are waiting, which is the most: come again", "too much to do"),
}
_BINARY = {"schema": {"type": "string", "format": "binary"}}
PREDICT: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {
            "image/png": _BINARY,
            "image/jpeg": _BINARY,
            "multipart/form-data": {
                "schema": {
                    "type": "object",
                    "properties": {"pictures": {"type": "array", "items": {"type": "string", "format": "binary"}}},
                }
            },
            "application/json": {
                "schema": {
                    "type": "object",
                    "properties": {"pictures": {"type": "array", "items": {"type": "string", "format": "byte"}}},
                },
                "example": {"pictures": ["iVBORw0KGgoAAAANSUhEUg..."]},
            },
        },
    },
    "responses": {
        "200": {
            "description": "Predictions in the order of the pictures; of a segmentation with `map`, an index PNG in "
            "base64, or that PNG alone where `Accept: image/png` asks for it.",
            "content": {"application/json": {"example": _ANSWER}, "image/png": _BINARY},
        },
        "422": _error("it is neither PNG nor JPEG", "no picture of the request can be read"),
        **_ERRORS,
    },
}


def action(example: dict[str, Any]) -> dict[str, Any]:
    """The description of an action whose body may be like the example."""
    body = {"required": True, "content": {"application/json": {"schema": {"type": "object"}, "example": example}}}
    conflict = {
        "404": _error("main has no snapshot 7; it has 1, 2", "no such snapshot"),
        "409": _error("main has no snapshot and no healthy state to go back to", "not possible now"),
    }
    return {"requestBody": body, "responses": {"200": _json(_ACTED, "It is done, and logged."), **conflict, **_ERRORS}}


EXAMPLES: dict[str, dict[str, Any]] = {
    "reset": {"reason": "a new camera"},
    "rollback": {"to": 2, "reason": "worse since noon"},
    "snapshot": {"reason": "before the night"},
    "freeze": {"frozen": True, "reason": "maintenance"},
    "export": {"reason": "for the other cameras"},
}
STATE = {
    "responses": {
        "200": _json({"model": "mine", "streams": ["main"], "queue": 3, "pictures": 1200, "frozen": False}, "State."),
        **_ERRORS,
    }
}
EVENTS = {
    "responses": {
        "200": {
            "description": "Server-sent events, one a second: what is new since `Last-Event-ID`, and the state.",
            "content": {"text/event-stream": {"example": 'id: 1a2b-17\ndata: {"seconds": [], "marks": []}\n\n'}},
        },
        **_ERRORS,
    }
}
HEALTH = {
    "responses": {
        "200": _json(
            {"status": "degraded", "problems": ["states are not being saved: No space left on device"]},
            "`ok`, or `degraded`: it predicts and learns, and something is wrong. No token is needed to ask.",
        ),
    }
}
METRICS = {
    "responses": {
        "200": {
            "description": "The text format of Prometheus.",
            "content": {"text/plain": {"example": 'testdg_pictures_total{stream="main"} 1200\n'}},
        }
    }
}
LOGIN = {
    "requestBody": {
        "required": True,
        "content": {"application/json": {"schema": {"type": "object"}, "example": {"token": "..."}}},
    },
    "responses": {"200": _json({"status": "ok"}, "A cookie that no script can read."), **_ERRORS},
}
