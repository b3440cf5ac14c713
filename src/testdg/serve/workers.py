"""The threads of a server: one predicts, and puts concurrent requests into one pass; one learns from queues."""

import math
import os
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby, islice
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor

from testdg.runs.predictions import Comparison, compare
from testdg.runs.session import Session
from testdg.serve.limits import Limits, Refused
from testdg.serve.pictures import DecodedPicture
from testdg.serve.session import PUT_BACK, Learning, LearningOutcome, StreamSession
from testdg.serve.storage import SessionPool

T = TypeVar("T")
_LARGE = 8  # from this batch size on, the two models predict in two threads
PATIENCE = 0.5
"""Seconds that a picture waits for others to fill its batch."""
SHARE = 0.2
"""Approximate share of a core for learning while requests are in flight. Without requests, learning does not pause."""


def lower_priority() -> None:
    """Let other threads of this process run before the current one, where the system supports it."""
    with suppress(OSError, AttributeError):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 5)


def running_future() -> "Future[T]":
    """A future that cannot be cancelled, so that its result can be set at any time."""
    future: Future[T] = Future()
    future.set_running_or_notify_cancel()
    return future


class Job(NamedTuple):
    """Pictures of one request."""

    session: StreamSession
    pictures: Sequence[DecodedPicture]
    answers: Future[list[Comparison]]


class Batcher:
    """A thread that predicts with the adapted models, and a second one for the source model.

    One pass over several pictures is much cheaper than a pass for each, so requests that are in progress at the same
    time share a pass. The thread waits only for requests that exist: it stops gathering when every request in flight
    has queued its job, or after `Limits.gather` seconds. A request that is alone therefore never waits. Streams have
    different models, so a pass never mixes them: they are answered one after the other.
    """

    def __init__(self, source: Session, limits: Limits) -> None:
        self.source, self.limits = source, limits
        self.in_flight = 0
        """Requests that are in progress and will soon need a prediction."""
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self.thread = threading.Thread(target=self._work, name="predictions", daemon=True)
        self._source_thread = ThreadPoolExecutor(1, thread_name_prefix="source")

    def predict(self, session: StreamSession, pictures: Sequence[DecodedPicture]) -> Future[list[Comparison]]:
        """Queue pictures for a prediction."""
        job = Job(session, pictures, running_future())
        self._jobs.put(job)
        return job.answers

    def close(self, seconds: float) -> None:
        """Answer the queued jobs, then end the threads."""
        self._jobs.put(None)
        self.thread.join(seconds)
        self._source_thread.shutdown()

    def _work(self) -> None:
        while (jobs := self._next_jobs()) is not None:
            jobs.sort(key=lambda job: id(job.session))
            for _, same in groupby(jobs, key=lambda job: id(job.session)):
                self._answer(list(same))

    def _next_jobs(self) -> list[Job] | None:
        """Wait for a job, then briefly for those of other requests in flight; None at the end."""
        first = self._jobs.get()
        if first is None:
            return None
        jobs, until = [first], time.monotonic() + self.limits.gather
        with suppress(queue.Empty):
            while len(jobs) < min(self.in_flight, self.limits.pictures):
                job = self._jobs.get(timeout=max(0.0, until - time.monotonic()))
                if job is None:
                    self._jobs.put(None)
                    break
                jobs.append(job)
        return jobs

    def _answer(self, jobs: list[Job]) -> None:
        """Predict the jobs of one stream together; if that fails, each one alone, so that only the faulty one fails."""
        try:
            pictures = [one for job in jobs for one in job.pictures]
            answers = iter(self._predict(jobs[0].session, pictures))
        except Exception as error:
            if len(jobs) == 1:
                jobs[0].answers.set_exception(error)
            else:
                for job in jobs:
                    self._answer([job])
            return
        for job in jobs:
            job.answers.set_result(list(islice(answers, len(job.pictures))))

    def _predict(self, session: StreamSession, pictures: Sequence[DecodedPicture]) -> list[Comparison]:
        """Compare the adapted model with the source model, in passes of a limited number of pixels."""
        answers: list[Comparison] = []
        while len(answers) < len(pictures):
            rest, found = pictures[len(answers) :], dict[int, Comparison]()
            count = self.source.canvas.fitting((one.image for one in rest), self.limits.pass_pixels)
            for places, batch in self.source.canvas.batches([one.image for one in rest[:count]]):
                batch = batch.contiguous(memory_format=torch.channels_last)  # faster for convolutions on a CPU
                compared = compare(*self._logits(session, batch), [rest[place].size for place in places])
                if not all(math.isfinite(one.confidence) for one in compared):
                    message = "the predictions of the adapted model are not finite: roll the stream back, or reset it"
                    raise Refused(message, "not-finite", 409)
                found.update(zip(places, compared, strict=True))
            answers += [found[place] for place in range(count)]
        return answers

    def _logits(self, session: StreamSession, batch: Tensor) -> tuple[Tensor, Tensor]:
        """Logits of the adapted model and of the source model; computed one after the other for a small batch."""
        source_pass = partial(session.session.predict_by, self.source.model, batch)
        if not self.source.adapter.learns:
            return (source_pass(),) * 2
        parallel = self._source_thread.submit(source_pass) if len(batch) >= _LARGE else None
        try:
            own = session.predict(batch)
        finally:  # the source model is free when this function ends, also after an error
            source = source_pass() if parallel is None else parallel.result()
        return own, source


class QueuedPicture(NamedTuple):
    """A picture in the queue, and the future of a request that waits for its outcome."""

    image: Tensor
    since: float
    outcome: Future[LearningOutcome] | None


@dataclass
class _Queue:
    session: StreamSession
    pictures: deque[QueuedPicture] = field(default_factory=deque)
    served: float = 0.0


class BackgroundLearner:
    """A thread that learns from queues, one per stream, a batch at a time.

    Learning must not slow predictions down: the thread has low priority, and while requests are in flight it pauses
    after each step until learning has used about `SHARE` of the time. Of the queues that are ready, the one that waited
    longest comes next, so a busy stream cannot starve the others.

    `_change` guards queues and totals; it is not held during a step. A queue in `_queues` keeps its session in memory:
    the code that removes the queue releases the session, once. A batch is taken together with the `era` of its
    session; if the model is replaced before the step begins, the eras differ and nothing is learnt.
    """

    def __init__(self, pool: SessionPool, limits: Limits, batch_size: int, busy: Callable[[], bool]) -> None:
        self.pool, self.limits, self.batch_size, self.busy = pool, limits, batch_size, busy
        self._queues: dict[str, _Queue] = {}
        self._change = threading.Condition()
        self._bytes = self._length = 0
        self._ending, self._deadline = False, math.inf
        self._pause_until = 0.0
        """Time until which learning pauses while requests are in flight."""
        self.thread = threading.Thread(target=self._work, name="learner", daemon=True)

    def __len__(self) -> int:
        return self._length

    def offer(
        self, session: StreamSession, pictures: Sequence[DecodedPicture], *, wait: bool = False
    ) -> tuple[Learning, list[Future[LearningOutcome]]]:
        """Queue the pictures of a request if there is room for all; with `wait`, also return a future for each."""
        if not session.online.adapter.learns or session.frozen:
            return "frozen" if session.frozen else "off", []
        count, size = len(pictures), sum(one.image.nbytes for one in pictures)
        with self._change:
            queue = self._queues.get(session.name)
            length = 0 if queue is None else len(queue.pictures)
            full = self._length + count > self.limits.queue or self._bytes + size > self.limits.queue_bytes
            if self._ending or full or length + count > self.limits.queue_of_stream:
                session.counts.dropped += count
                return "dropped", []
            if queue is None:
                queue = self._queues[session.name] = _Queue(session)
                self.pool.acquire(session.name)  # the session stays in memory while pictures wait
            outcomes: list[Future[LearningOutcome]] = []
            now = time.monotonic()
            for one in pictures:
                outcome: Future[LearningOutcome] | None = running_future() if wait else None
                outcomes += [] if outcome is None else [outcome]
                queue.pictures.append(QueuedPicture(one.image, now, outcome))
            self._length, self._bytes = self._length + count, self._bytes + size
            self._change.notify()
        return "queued", outcomes

    def clear(self, session: StreamSession) -> int:
        """Empty the queue of a stream whose model is being replaced; returns the number of removed pictures."""
        with self._change:
            queue = self._queues.pop(session.name, None)
            removed = [] if queue is None else self._take(queue, len(queue.pictures))
        if queue is not None:
            self.pool.release(session)
        _set_outcomes(removed, [LearningOutcome(False, False, PUT_BACK)] * len(removed))
        return len(removed)

    def close(self, seconds: float) -> int:
        """Learn from the queued pictures for a bounded time, then end; returns the number of pictures left."""
        with self._change:
            self._ending, self._deadline = True, time.monotonic() + seconds
            self._change.notify()
        self.thread.join()
        return self._length

    def _work(self) -> None:
        lower_priority()
        while (queue := self._next()) is not None:
            started = time.thread_time()
            with self._change:
                images = (one.image for one in islice(queue.pictures, self.batch_size))
                size = queue.session.session.canvas.fitting(images, self.limits.pass_pixels)
                batch, era = self._take(queue, size), queue.session.era
            if batch:
                _set_outcomes(batch, self._learn(queue.session, batch, era))
            queue.served = time.monotonic()
            self._pause_until = queue.served + (time.thread_time() - started) * (1 / SHARE - 1)
            with self._change:
                empty = not queue.pictures and self._queues.get(queue.session.name) is queue
                if empty:
                    del self._queues[queue.session.name]
            if empty:
                self.pool.release(queue.session)

    def _next(self) -> _Queue | None:
        """Wait for a queue with a full batch, or with pictures that have waited long enough; None at the end."""
        with self._change:
            while (now := time.monotonic()) < self._deadline:
                ready = [
                    queue
                    for queue in self._queues.values()
                    if len(queue.pictures) >= self.batch_size
                    or (queue.pictures and (self._ending or queue.pictures[0].outcome is not None))
                    or (queue.pictures and now - queue.pictures[0].since >= PATIENCE)
                ]
                if ready and (self._ending or not self.busy() or now >= self._pause_until):
                    return min(ready, key=lambda queue: queue.served)
                if self._ending and not self._length:
                    return None
                self._change.wait(0.02 if self._length else None)
        return None

    def _take(self, queue: _Queue, most: int) -> list[QueuedPicture]:
        taken = [queue.pictures.popleft() for _ in range(min(most, len(queue.pictures)))]
        self._length -= len(taken)
        self._bytes -= sum(one.image.nbytes for one in taken)
        return taken

    def _learn(self, session: StreamSession, batch: Sequence[QueuedPicture], era: int) -> list[LearningOutcome]:
        """Learn from a batch; an error of one stream must not end the thread."""
        try:
            return session.learn([one.image for one in batch], era)
        except Exception as error:
            session.counts.failures += 1
            session.timeline.mark("guard", f"learning failed: {type(error).__name__}: {error}"[:300])
            return [LearningOutcome(False, False, "learning failed")] * len(batch)


def _set_outcomes(batch: Sequence[QueuedPicture], outcomes: Sequence[LearningOutcome]) -> None:
    for one, outcome in zip(batch, outcomes, strict=True):
        if one.outcome is not None:
            one.outcome.set_result(outcome)
