"""What happened in a stream, second by second, in bounded memory: for the page, which asks for all that is new."""

import threading
import time
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import count
from typing import Any

from torch import Tensor

from testdg.runs.predictor import Both
from testdg.serve.pictures import thumbnail

SECONDS = 900
"""Seconds of the curve that are kept."""
MARKS = 200
SAMPLES = 12
MIX = 200
"""Predictions whose classes are a mix."""
_SAME = 10.0  # seconds within which a decision that comes again is the same one
_numbers = count(1)  # of everything that a page may not know yet


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
    """A change, a decision or an action, with its reason; `times` it came again at once."""

    kind: str
    text: str
    time: float
    number: int
    id: int
    times: int = 1


class Timeline:
    """Seconds, marks, samples and the mix of classes of one stream; safe to use from several threads."""

    def __init__(self) -> None:
        self.seconds: deque[Second] = deque(maxlen=SECONDS)
        self.marks: deque[Mark] = deque(maxlen=MARKS)
        self.samples: dict[bool, deque[dict[str, Any]]] = {one: deque(maxlen=SAMPLES) for one in (True, False)}
        """Small pictures with both predictions, by whether these differ."""
        self.mix: deque[int] = deque(maxlen=MIX)
        self.before: list[int] = []
        """Classes of the pictures before the last change; of the first ones, where there was none."""
        self.changed = False
        self._lock = threading.Lock()
        self._now: Second | None = None

    def add(self, answers: Sequence[Both], label: int | None = None) -> None:
        """Count predictions."""
        with self._lock:
            second = self._second()
            for own, source, differs in answers:
                second.pictures += 1
                second.confidence += own.confidence
                second.source_confidence += source.confidence
                second.differs += differs
                if label is not None:
                    second.labelled += 1
                    second.right += own.class_index == label
                    second.source_right += source.class_index == label
                self.mix.append(own.class_index)
                if not self.changed and len(self.before) < MIX:
                    self.before.append(own.class_index)

    def _second(self) -> Second:
        """The second that it is; the one before is done, and gets its number."""
        now = int(time.time())
        if self._now is None or self._now.time != now:
            self._close()
            self._now = Second(now)
        return self._now

    def _close(self) -> None:
        if self._now is not None and self._now.pictures:
            self._now.number = next(_numbers)
            self.seconds.append(self._now)
        self._now = None

    def mark(self, kind: str, text: str) -> None:
        """Note that something happened; a guard that skips again and again is noted once."""
        with self._lock:
            if kind == "change":
                self.before, self.changed = list(self.mix), True
            last = self.marks[-1] if self.marks else None
            now = time.time()
            if last is not None and _same(last, kind, text) and now - last.time < _SAME * last.times:
                last.times, last.text, last.number = last.times + 1, text, next(_numbers)
                return
            number = next(_numbers)
            self.marks.append(Mark(kind, text, now, number, number))

    def show(self, image: Tensor, answer: Both, names: Sequence[str]) -> None:
        """Keep a picture; those whose prediction adaptation has changed have a place of their own."""
        own, source, differs = answer
        sample = {
            "picture": thumbnail(image),
            "before": names[source.class_index],
            "after": names[own.class_index],
            "confidence": own.confidence,
            "source_confidence": source.confidence,
            "differs": differs,
        }
        with self._lock:
            changed = sample["before"] != sample["after"] or differs > 0.1
            self.samples[changed].append({"number": next(_numbers), "time": time.time(), **sample})

    def since(self, number: int) -> dict[str, Any]:
        """Everything after that number, ready for JSON, and the number to ask with the next time."""
        with self._lock:
            if self._now is not None and self._now.time != int(time.time()):
                self._close()
            samples = [one for kept in self.samples.values() for one in kept if one["number"] > number]
            found = {
                "seconds": [asdict(one) for one in self.seconds if one.number > number],
                "marks": [asdict(one) for one in self.marks if one.number > number],
                "samples": sorted(samples, key=lambda one: one["number"]),
            }
            last = max((one["number"] for part in found.values() for one in part), default=number)
            mixes = {"now": Counter(self.mix), "before": Counter(self.before)}
            return {**found, "number": last, "mix": mixes}

    def rate(self, seconds: int = 5) -> float:
        """Pictures a second, over the last few."""
        with self._lock:
            now = int(time.time())
            kept = [*list(self.seconds)[-seconds:], *([] if self._now is None else [self._now])]
            return sum(one.pictures for one in kept if now - seconds <= one.time < now) / seconds

    def values(self) -> list[dict[str, Any]]:
        """The last marks, for a saved state."""
        with self._lock:
            return [{"kind": one.kind, "text": one.text, "time": one.time} for one in list(self.marks)[-50:]]

    def load(self, values: Sequence[dict[str, Any]]) -> None:
        """Put back what `values` gave, before anything else happens."""
        for value in values:
            number = next(_numbers)
            self.marks.append(Mark(str(value["kind"]), str(value["text"]), float(value["time"]), number, number))


def _same(last: Mark, kind: str, text: str) -> bool:
    """Whether a decision is the last one again, but for the numbers in it."""
    plain = [one.translate(str.maketrans("", "", "0123456789.%")) for one in (last.text, text)]
    return kind == last.kind == "guard" and plain[0] == plain[1]
