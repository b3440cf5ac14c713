"""What a request holds (one picture as it is, several as a form, or base64 in JSON), and what its answer says."""

import base64
import binascii
import json
from collections.abc import Sequence
from typing import Any

from starlette.datastructures import UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import Request

from testdg.errors import visible
from testdg.runs.predictor import Both
from testdg.serve.limits import Limits, Refused
from testdg.serve.pictures import Picture, index_png
from testdg.serve.stream import FROZEN, Fate, Stream

_MOST_REASON = 200  # characters
_MARKS = (b"[", b"{", b'"', b",")  # of JSON: there is no part without one
_WHY_NOT = {
    "dropped": "the queue of pictures to learn from is full",
    "frozen": FROZEN,
    "off": "the method learns nothing",
}


async def read_files(request: Request, limits: Limits) -> list[bytes]:
    """The pictures of a request, as the bytes of their files."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind == "multipart/form-data":
        files = await _form(request, limits)
    elif kind == "application/json":
        files = _from_json(await read_json(request, limits), limits)
    else:
        files = [await request.body()]
    if not files or not any(files):
        raise Refused("there is no picture in the request: send a PNG or JPEG file, a form of files, or base64 in JSON")
    return files


async def _form(request: Request, limits: Limits) -> list[bytes]:
    parser = MultiPartParser(
        request.headers, request.stream(), max_files=limits.pictures, max_fields=16, max_part_size=limits.body
    )
    parser.spool_max_size = limits.body  # in memory: a full disk must not keep pictures out
    try:
        form = await parser.parse()
    except (MultiPartException, KeyError) as error:
        raise Refused(f"the form cannot be read: {getattr(error, 'message', 'it has no boundary')}") from error
    return [await value.read() for _, value in form.multi_items() if isinstance(value, UploadFile)]


async def read_json(request: Request, limits: Limits) -> dict[str, Any]:
    """A JSON object; an empty body is an empty one."""
    body = await request.body()
    if sum(map(body.count, _MARKS)) > limits.json_parts:
        raise Refused("the JSON of the request has too many parts")
    try:
        found = json.loads(body or b"{}")
    except (ValueError, RecursionError) as error:
        raise Refused(f"the request is not JSON: {type(error).__name__}") from error
    if not isinstance(found, dict):
        raise Refused(f"the request must be a JSON object; got {type(found).__name__}")
    return found


def _from_json(values: dict[str, Any], limits: Limits) -> list[bytes]:
    given = values.get("pictures", values.get("picture"))
    texts: list[Any] = given if isinstance(given, list) else [given]
    if len(texts) > limits.pictures:
        raise Refused(f"a request may have {limits.pictures} pictures; got {len(texts)}")
    if not all(isinstance(text, str) for text in texts):
        raise Refused('pictures must be base64 texts, as in {"pictures": ["iVBORw0..."]}')
    try:
        return [base64.b64decode(text, validate=True) for text in texts]
    except (binascii.Error, ValueError) as error:
        raise Refused(f"a picture is not base64: {error}") from error


async def read_action(request: Request, limits: Limits) -> tuple[dict[str, Any], str]:
    """The values of an action, and its reason; JSON alone, which no form of another site can send."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise Refused("an action is sent as JSON (Content-Type: application/json), {} where there is nothing to say")
    values = await read_json(request, limits)
    reason = values.get("reason", "")
    if not isinstance(reason, str) or not isinstance(values.get("frozen", True), bool):
        raise Refused("reason must be a text, frozen true or false")
    to = values.get("to")
    if to is not None and to != "healthy" and type(to) is not int:
        raise Refused('to must be the number of a snapshot, or "healthy"')
    return {key: values[key] for key in ("to", "frozen") if values.get(key) is not None}, visible(reason[:_MOST_REASON])


def answer_json(
    stream: Stream, read: Sequence[Picture | str], answers: Sequence[Both], learning: str, fates: Sequence[Fate]
) -> dict[str, Any]:
    """The answer to a request for predictions; there are `fates` where somebody has waited for them."""
    known: Sequence[Fate | None] = fates or [None] * len(answers)
    pairs = zip(answers, known, strict=True)
    told = iter([_picture_json(one, stream.factory.names, learning, fate) for one, fate in pairs])
    last, change = stream.last, stream.take_change() or any(fate.change for fate in fates)
    return {
        "stream": stream.name,
        "change": change,
        "learning": "done" if fates else learning,
        "last_learning": None if last is None else {"learnt": last.learnt, "reason": last.reason},
        "predictions": [{"error": one} if isinstance(one, str) else next(told) for one in read],
    }


def _picture_json(one: Both, names: Sequence[str], learning: str, fate: Fate | None) -> dict[str, Any]:
    """What is told of one picture; `learnt` is null while nobody knows yet."""
    own, source, differs = one
    told = {
        "class": names[own.class_index],
        "class_index": own.class_index,
        "confidence": round(own.confidence, 6),
        "source_class": names[source.class_index],
        "source_index": source.class_index,
        "source_confidence": round(source.confidence, 6),
        "differs": round(differs, 6),
        "learnt": None if learning == "queued" and fate is None else fate is not None and fate.learnt,
        "reason": _WHY_NOT.get(learning, "") if fate is None else fate.reason,
    }
    if own.map is None:
        return told
    return {**told, "map": base64.b64encode(index_png(own.map, len(names))).decode()}
