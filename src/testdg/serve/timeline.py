"""What happened in a stream, second by second, in bounded memory. Pages fetch what is new since their last request."""

import base64
import threading
import time
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import count
from typing import Any

from torch import Tensor

from testdg.data.pictures import to_pil
from testdg.runs.predictions import Comparison
from testdg.serve.pictures import encoded

SECONDS = 900
"""Length of the curve."""
MARKS = 200
SAMPLES = 12
MIX = 200
"""Number of predictions from which the mix of classes is counted."""
_SIDE = 72  # pixels of the longer side of a sample
_SAME = 10.0  # seconds within which a repeated decision is the same mark
_DIGITS = str.maketrans("", "", "0123456789.%")
_numbers = count(1)  # numbers of seconds, marks and samples, in the order of their changes


@dataclass
class Second:
    """Sums over the pictures of one second."""

    time: int
    number: int = 0
    pictures: int = 0
    confidence: float = 0.0
    source_confidence: float = 0.0
    differs: float = 0.0
    labelled: int = 0
    right: int = 0
    source_right: int = 0


@dataclass
class Mark:
    """A change, a decision or an action, with its reason; `times` counts immediate repetitions."""

    kind: str
    text: str
    time: float
    number: int
    id: int
    times: int = 1


class Timeline:
    """Seconds, marks, samples and class mix of one stream. Thread-safe.

    Every second, mark and sample gets a new number when it changes, so that `since(number)` returns what a page does
    not know yet. The current second has none until it is over.
    """

    def __init__(self) -> None:
        self.seconds: deque[Second] = deque(maxlen=SECONDS)
        self.marks: deque[Mark] = deque(maxlen=MARKS)
        self.samples: dict[bool, deque[dict[str, Any]]] = {one: deque(maxlen=SAMPLES) for one in (True, False)}
        """Small pictures with both predictions, by whether these differ."""
        self.mix: deque[int] = deque(maxlen=MIX)
        self.before: list[int] = []
        """Classes of the pictures before the last change; of the first pictures until there is one."""
        self.changed = False
        self._lock = threading.Lock()
        self._current: Second | None = None

    def add(self, answers: Sequence[Comparison], label: int | None = None) -> None:
        with self._lock:
            now = int(time.time())
            if self._current is None or self._current.time != now:
                self._finish_second()
                self._current = Second(now)
            second = self._current
            for one in answers:
                second.pictures += 1
                second.confidence += one.confidence
                second.source_confidence += one.source_confidence
                second.differs += one.differs
                if label is not None:
                    second.labelled += 1
                    second.right += one.class_index == label
                    second.source_right += one.source_class_index == label
                self.mix.append(one.class_index)
                if not self.changed and len(self.before) < MIX:
                    self.before.append(one.class_index)

    def _finish_second(self) -> None:
        if self._current is not None and self._current.pictures:
            self._current.number = next(_numbers)
            self.seconds.append(self._current)
        self._current = None

    def mark(self, kind: str, text: str) -> None:
        """Add a mark. A decision of the guard that repeats the last mark, except for its numbers, is counted there."""
        with self._lock:
            if kind == "change":
                self.before, self.changed = list(self.mix), True
            now, last = time.time(), self.marks[-1] if self.marks else None
            if (
                last is not None
                and kind == last.kind == "guard"
                and last.text.translate(_DIGITS) == text.translate(_DIGITS)
                and now - last.time < _SAME * last.times
            ):
                last.times, last.text, last.number = last.times + 1, text, next(_numbers)
                return
            number = next(_numbers)
            self.marks.append(Mark(kind, text, now, number, number))

    def add_sample(self, image: Tensor, answer: Comparison, names: Sequence[str]) -> None:
        """Add a picture. Pictures whose prediction differs from the source's have a queue of their own."""
        picture = to_pil(image)
        picture.thumbnail((_SIDE, _SIDE))
        sample = {
            "picture": f"data:image/jpeg;base64,{base64.b64encode(encoded(picture, 'JPEG')).decode()}",
            "before": names[answer.source_class_index],
            "after": names[answer.class_index],
            "confidence": answer.confidence,
            "source_confidence": answer.source_confidence,
            "differs": answer.differs,
        }
        with self._lock:
            changed = answer.class_index != answer.source_class_index or answer.differs > 0.1
            self.samples[changed].append({"number": next(_numbers), "time": time.time(), **sample})

    def since(self, number: int) -> dict[str, Any]:
        """Everything with a higher number, ready for JSON, and the number for the next call."""
        with self._lock:
            if self._current is not None and self._current.time != int(time.time()):
                self._finish_second()
            samples = [one for queue in self.samples.values() for one in queue if one["number"] > number]
            found = {
                "seconds": [asdict(one) for one in self.seconds if one.number > number],
                "marks": [asdict(one) for one in self.marks if one.number > number],
                "samples": sorted(samples, key=lambda one: one["number"]),
            }
            last = max((one["number"] for part in found.values() for one in part), default=number)
            mixes = {"now": Counter(self.mix), "before": Counter(self.before)}
            return {**found, "number": last, "mix": mixes}

    def rate(self, seconds: int = 5) -> float:
        """Pictures per second over the last few seconds."""
        with self._lock:
            now = int(time.time())
            recent = list(self.seconds)[-seconds:]
            if self._current is not None:
                recent.append(self._current)
            return sum(one.pictures for one in recent if now - seconds <= one.time < now) / seconds

    def values(self) -> list[dict[str, Any]]:
        """The last marks, for a saved state."""
        with self._lock:
            return [{"kind": one.kind, "text": one.text, "time": one.time} for one in list(self.marks)[-50:]]

    def load(self, values: Sequence[dict[str, Any]]) -> None:
        for value in values:
            number = next(_numbers)
            kind, text, time = str(value["kind"]), str(value["text"]), float(value["time"])
            self.marks.append(Mark(kind, text, time, number, number))
