"""Learning on a thread of its own: a bounded queue for every stream, taken in turn, behind the predictions."""

import math
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from typing import NamedTuple

from torch import Tensor

from testdg.serve.limits import Limits
from testdg.serve.stream import PUT_BACK, Fate, Stream
from testdg.serve.streams import Streams

PATIENCE = 0.5
"""Seconds that pictures wait for others to fill their batch."""
SHARE = 0.2
"""Part of a core that learning takes, about, while predictions are waiting; all that is idle otherwise."""
_NICE = 5  # of the thread, where the system has such: predictions go first


class Waiting(NamedTuple):
    """A picture that waits to be learnt from; whoever waits for it hears of its fate."""

    image: Tensor
    since: float
    fate: Future[Fate] | None

    def tell(self, fate: Fate) -> None:
        """Tell whoever waits, if anybody still does."""
        if self.fate is not None and self.fate.set_running_or_notify_cancel():
            self.fate.set_result(fate)


@dataclass
class _Queue:
    stream: Stream
    pictures: deque[Waiting] = field(default_factory=deque)
    served: float = 0.0


class Learner:
    """Takes pictures, and lets the adapters of their streams learn from them, a batch at a time."""

    def __init__(self, streams: Streams, limits: Limits, batch_size: int, busy: Callable[[], bool]) -> None:
        self.streams, self.limits, self.batch_size, self.busy = streams, limits, batch_size, busy
        self._queues: dict[str, _Queue] = {}
        self._change = threading.Condition()
        self._bytes = self._length = 0
        self._ending, self._last = False, math.inf
        self._rest = 0.0
        """When learning goes on, whoever waits for predictions."""
        self.thread = threading.Thread(target=self._work, name="learner", daemon=True)

    def __len__(self) -> int:
        """Pictures that wait."""
        return self._length

    def offer(self, stream: Stream, images: Sequence[Tensor], *, wait: bool = False) -> list[Future[Fate]] | None:
        """Put pictures in the queue, if it has room for all of them; `wait` gives a future for each."""
        size = sum(image.nbytes for image in images)
        with self._change:
            queue = self._queues.get(stream.name)
            waiting = 0 if queue is None else len(queue.pictures)
            full = self._length + len(images) > self.limits.queue or self._bytes + size > self.limits.queue_bytes
            if self._ending or full or waiting + len(images) > self.limits.queue_of_stream:
                stream.counts.dropped += len(images)  # nobody else counts these
                return None
            if queue is None:
                queue = self._queues[stream.name] = _Queue(stream)
                self.streams.hold(stream)  # while pictures wait
            fates: list[Future[Fate]] = [Future() for _ in images] if wait else []
            now = time.monotonic()
            given = fates if wait else [None] * len(images)
            queue.pictures.extend(Waiting(image, now, fate) for image, fate in zip(images, given, strict=True))
            self._length, self._bytes = self._length + len(images), self._bytes + size
            self._change.notify()
        return fates

    def forget(self, stream: Stream) -> int:
        """Throw away what waits of a stream, whose model has become another; says how much it was."""
        with self._change:
            queue = self._queues.pop(stream.name, None)
            thrown = [] if queue is None else self._taken(queue, len(queue.pictures))
        if queue is not None:
            self.streams.leave(stream)
        for one in thrown:
            one.tell(Fate(False, False, PUT_BACK))
        return len(thrown)

    def close(self, seconds: float) -> int:
        """Learn from what waits, for a bounded time, and end; gives the number of pictures that had to be left."""
        with self._change:
            self._ending, self._last = True, time.monotonic() + seconds
            self._change.notify()
        self.thread.join()
        return self._length

    def _work(self) -> None:
        with suppress(OSError, AttributeError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICE)
        while (queue := self._next()) is not None:
            begun = time.thread_time()
            with self._change:
                first = (one.image for one in islice(queue.pictures, self.batch_size))
                size = queue.stream.factory.canvas.fitting(first, self.limits.pass_pixels)
                batch, era = self._taken(queue, size), queue.stream.era
            if batch:
                self._learn(queue.stream, batch, era)
            queue.served = time.monotonic()
            self._rest = queue.served + (time.thread_time() - begun) * (1 / SHARE - 1)
            self._tidy(queue)

    def _next(self) -> _Queue | None:
        """Wait for a stream whose turn it is; None at the end."""
        with self._change:
            while time.monotonic() < self._last:
                ready = [queue for queue in self._queues.values() if self._ready(queue)]
                now = time.monotonic()
                if ready and (self._ending or not self.busy() or now >= self._rest):
                    return min(ready, key=lambda queue: queue.served)
                if self._ending and not self._length:
                    return None
                self._change.wait(0.02 if self._length else None)
        return None

    def _ready(self, queue: _Queue) -> bool:
        if not queue.pictures:
            return False
        first, full = queue.pictures[0], len(queue.pictures) >= self.batch_size
        return full or self._ending or first.fate is not None or time.monotonic() - first.since >= PATIENCE

    def _taken(self, queue: _Queue, most: int) -> list[Waiting]:
        taken = [queue.pictures.popleft() for _ in range(min(most, len(queue.pictures)))]
        self._length -= len(taken)
        self._bytes -= sum(one.image.nbytes for one in taken)
        return taken

    def _learn(self, stream: Stream, batch: Sequence[Waiting], era: int) -> None:
        """Learn, and tell whoever waits; whatever goes wrong in one stream ends there."""
        try:
            fates = stream.learn([one.image for one in batch], era)
        except Exception as error:
            stream.counts.failures += 1
            stream.timeline.mark("guard", f"learning failed: {type(error).__name__}: {error}"[:300])
            fates = [Fate(False, False, "learning failed")] * len(batch)
        for one, fate in zip(batch, fates, strict=True):
            one.tell(fate)

    def _tidy(self, queue: _Queue) -> None:
        """Let a stream go from which nothing waits."""
        with self._change:
            if queue.pictures or self._queues.get(queue.stream.name) is not queue:
                return
            del self._queues[queue.stream.name]
        self.streams.leave(queue.stream)
