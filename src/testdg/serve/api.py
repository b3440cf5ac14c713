"""Requests and answers: the models that `/openapi.json` describes, and the pictures in a request."""

import base64
import binascii
from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StrictBool, StrictInt, ValidationError
from starlette.datastructures import UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import Request

from testdg.data.pictures import Unreadable
from testdg.errors import visible
from testdg.runs.predictions import Comparison
from testdg.serve.limits import Limits, Refused
from testdg.serve.pictures import DecodedPicture, index_png
from testdg.serve.session import FROZEN, Counts, Learning, LearningOutcome, StreamSession

ABOUT = """A vision model that adapts to its input without labels.

The adapted model and the source model predict pictures immediately; learning follows on a thread of its own. Every
stream has its own adapter. A guard protects the model. Errors are `{"error": "one sentence", "code": "stable-code"}`.
"""
_MOST_REASON = 200  # characters
_JSON_MARKS = (b"[", b"{", b'"', b",")  # every value in a JSON text has one of them
_NOT_LEARNT = {
    "dropped": "the queue of pictures to learn from is full",
    "frozen": FROZEN,
    "off": "the method does not learn",
}

Action = Literal["reset", "rollback", "snapshot", "freeze", "export"]


class Reply(BaseModel):
    """An answer; a field without a value in an example is left out where it does not apply."""

    model_config = ConfigDict(extra="forbid")


class Problem(Reply):
    """An error."""

    error: str = Field(description="One sentence, which may be reworded at any time.", examples=["it is damaged"])
    code: str = Field(description="A name of the error that does not change.", examples=["damaged-picture"])


class PicturePrediction(Reply):
    """Predictions of the adapted model and of the source model for one picture."""

    class_name: str = Field(serialization_alias="class", examples=["7"])
    class_index: int = Field(examples=[7])
    confidence: float = Field(examples=[0.981204])
    source_class: str = Field(examples=["1"])
    source_class_index: int = Field(examples=[1])
    source_confidence: float = Field(examples=[0.412917])
    differs: float = Field(
        description="1 if adaptation changed the class, else 0; for segmentation, the share of pixels.", examples=[1.0]
    )
    learnt: bool | None = Field(description="null as long as the picture is queued.", examples=[True])
    reason: str = Field(description="Why the picture was not learnt from.", examples=[""])
    map: str = Field(default="", description="For segmentation: the class of every pixel as a PNG in base64.")

    @classmethod
    def of(
        cls, answer: Comparison, names: Sequence[str], learning: Learning, outcome: LearningOutcome | None
    ) -> "PicturePrediction":
        """The answer for one picture, with the outcome of learning if the request has waited for it."""
        learnt, reason = None if learning == "queued" else False, _NOT_LEARNT.get(learning, "")
        if outcome is not None:
            learnt, reason = outcome.learnt, outcome.reason
        found = cls(
            class_name=names[answer.class_index],
            class_index=answer.class_index,
            confidence=round(answer.confidence, 6),
            source_class=names[answer.source_class_index],
            source_class_index=answer.source_class_index,
            source_confidence=round(answer.source_confidence, 6),
            differs=round(answer.differs, 6),
            learnt=learnt,
            reason=reason,
        )
        if answer.map is not None:
            found.map = base64.b64encode(index_png(answer.map, len(names))).decode()
        return found


class LastLearning(Reply):
    """Outcome of the last batch that the stream tried to learn from."""

    learnt: bool = Field(examples=[True])
    reason: str = Field(examples=[""])


class Predictions(Reply):
    """Predictions in the order of the pictures, with an error for each picture that cannot be read."""

    stream: str = Field(examples=["main"])
    change: bool = Field(description="Whether a change of conditions was detected since the last answer.")
    learning: Learning = Field(examples=["done"])
    last_learning: LastLearning | None
    predictions: list[PicturePrediction | Problem]

    @classmethod
    def of(
        cls,
        session: StreamSession,
        read: Sequence[DecodedPicture | Unreadable],
        answers: Sequence[Comparison],
        learning: Learning,
        outcomes: Sequence[LearningOutcome],
    ) -> "Predictions":
        """The answer to a request; there are `outcomes` if it has waited for learning."""
        known: Sequence[LearningOutcome | None] = outcomes or [None] * len(answers)
        answered = zip(answers, known, strict=True)
        predictions: list[PicturePrediction | Problem] = []
        for one in read:
            if isinstance(one, Unreadable):
                predictions.append(Problem(error=str(one), code=one.code))
            else:
                answer, outcome = next(answered)
                predictions.append(PicturePrediction.of(answer, session.session.names, learning, outcome))
        change = session.changed or any(outcome.change for outcome in outcomes)
        session.changed = False
        last = None
        if session.last is not None:
            last = LastLearning(learnt=session.last.learnt, reason=session.last.reason)
        return cls(
            stream=session.name,
            change=change,
            learning="done" if outcomes else learning,
            last_learning=last,
            predictions=predictions,
        )


class ActionRequest(BaseModel):
    """An action on a stream. `frozen` belongs to `/freeze`, `to` to `/rollback`."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"reason": "worse since noon"}]})
    reason: Annotated[str, AfterValidator(lambda text: visible(text[:_MOST_REASON]))] = ""
    frozen: StrictBool = True
    to: StrictInt | Literal["healthy"] | None = Field(None, description="Number of a snapshot; else the last one.")


class Done(Reply):
    """An action that was applied and logged."""

    stream: str = Field(examples=["main"])
    action: Action = Field(examples=["rollback"])
    done: str = Field(examples=["back to snapshot 2"])
    forgotten: int = Field(0, description="Pictures that were removed from the queue.", examples=[12])
    number: int = Field(0, description="Number of the new snapshot.")
    folder: str = Field("", description="Folder of the exported model, in the folder of the server.")


class ServerState(Reply):
    """State of the server."""

    model: str = Field(examples=["mine"])
    method: str = Field(examples=["testdg_aligned"])
    guard: dict[str, int] | bool | None = Field(description="Whether there is a guard; of a stream, its decisions.")
    classes: list[str]
    streams: list[str] = Field(examples=[["main"]])
    in_memory: list[str] = Field(examples=[["main"]])
    queue: int = Field(description="Pictures that wait for learning, of all streams.")
    uptime: float = Field(description="Seconds.")
    problems: list[str]
    on_disk: bool = Field(False, description="In events: the stream is not in memory.")


class StreamState(ServerState, Counts):
    """State of the server and of one stream."""

    stream: str = Field(examples=["main"])
    settings: dict[str, Any]
    frozen: bool
    rate: float = Field(description="Pictures per second.")
    pause: int = Field(description="Pictures that the guard will not learn from.")
    state_bytes: int
    saved: float | None = Field(description="Time of the saved state.")
    snapshot: float | None = Field(description="Time of the last snapshot.")
    lost: str = Field(description="What was lost when the last server was killed.")
    snapshots: list[int]
    exports: list[int]


class ServerHealth(Reply):
    """`degraded`: the server predicts and learns, but there are problems."""

    status: Literal["ok", "degraded"]
    problems: list[str] = Field(examples=[["states are not being saved: No space left on device"]])


class LoginRequest(BaseModel):
    """The token of the server."""

    token: str


class LoggedIn(Reply):
    """The answer sets a cookie that scripts cannot read."""

    status: Literal["ok"] = "ok"


class PicturesRequest(BaseModel):
    """Pictures in base64."""

    pictures: list[str] = Field(examples=[["iVBORw0KGgoAAAANSUhEUg..."]])


async def read_files(request: Request, limits: Limits) -> list[bytes]:
    """The picture files in a request: one as the body, several as a form, or base64 in JSON."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind == "multipart/form-data":
        files = await _read_form(request, limits)
    elif kind == "application/json":
        files = _read_json(await request.body(), limits)
    else:
        files = [await request.body()]
    if not any(files):
        raise Refused(
            "the request has no picture: send a PNG or JPEG, a form of files, or base64 in JSON", "no-picture"
        )
    return files


async def _read_form(request: Request, limits: Limits) -> list[bytes]:
    parser = MultiPartParser(
        request.headers, request.stream(), max_files=limits.pictures, max_fields=16, max_part_size=limits.body
    )
    parser.spool_max_size = limits.body  # in memory, so that a full disk does not prevent predictions
    try:
        form = await parser.parse()
    except (MultiPartException, KeyError) as error:
        raise Refused(f"the form is damaged: {getattr(error, 'message', 'it has no boundary')}", "bad-form") from error
    return [await value.read() for _, value in form.multi_items() if isinstance(value, UploadFile)]


def _read_json(body: bytes, limits: Limits) -> list[bytes]:
    if sum(map(body.count, _JSON_MARKS)) > limits.json_parts:
        raise Refused(f"the JSON of the request has more than {limits.json_parts} parts", "too-many-parts")
    try:
        texts = PicturesRequest.model_validate_json(body).pictures
        if len(texts) > limits.pictures:
            raise Refused(f"a request may have {limits.pictures} pictures; got {len(texts)}", "too-many-pictures")
        return [base64.b64decode(text, validate=True) for text in texts]
    except ValidationError as error:
        wrong = error.errors(include_url=False, include_context=False, include_input=False)[0]
        raise Refused(f'expected {{"pictures": ["base64", ...]}}: {wrong["msg"]}', "bad-json") from error
    except binascii.Error as error:
        raise Refused(f"a picture is not base64: {error}", "bad-base64") from error
