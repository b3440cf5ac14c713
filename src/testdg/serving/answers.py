"""Predictions as the JSON of an answer."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Any

from testdg.serving.pictures import index_png
from testdg.serving.stream import FROZEN, Fate, Stream
from testdg.streaming.predictor import Both

WHY_NOT = {
    "dropped": "the queue of pictures to learn from is full",
    "frozen": FROZEN,
    "off": "the method learns nothing",
}


def picture_json(one: Both, names: Sequence[str], learning: str, fate: Fate | None) -> dict[str, Any]:
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
        "reason": WHY_NOT.get(learning, "") if fate is None else fate.reason,
    }
    if own.map is None:
        return told
    return {**told, "map": base64.b64encode(index_png(own.map, len(names))).decode()}


def answer_json(stream: Stream, learning: str, predictions: Sequence[dict[str, Any]], change: bool) -> dict[str, Any]:
    """The answer to a request."""
    last = stream.last
    return {
        "stream": stream.name,
        "change": change,
        "learning": learning,
        "last_learning": None if last is None else {"learnt": last.learnt, "reason": last.reason},
        "predictions": list(predictions),
    }
