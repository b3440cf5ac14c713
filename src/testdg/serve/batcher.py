"""Predictions: requests that arrive at the same time share a pass of the model."""

import math
import queue
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from itertools import groupby, islice
from typing import NamedTuple

import torch
from torch import Tensor

from testdg.runs.predictor import Both, compare
from testdg.serve.factory import Factory
from testdg.serve.limits import Limits, Refused
from testdg.serve.pictures import Picture
from testdg.serve.session import StreamSession, running_future

_LARGE = 8  # pictures whose two passes justify two threads


class Job(NamedTuple):
    """Pictures of one request."""

    session: StreamSession
    pictures: Sequence[Picture]
    answers: Future[list[Both]]


class Batcher:
    """A thread that predicts with the adapted models, and a second one for the source model."""

    def __init__(self, factory: Factory, limits: Limits) -> None:
        self.factory, self.limits = factory, limits
        self.in_flight = 0
        """Requests that are in progress and will soon need a prediction."""
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self.thread = threading.Thread(target=self._work, name="predictions", daemon=True)
        self._source_thread = ThreadPoolExecutor(1, thread_name_prefix="source")

    def predict(self, session: StreamSession, pictures: Sequence[Picture]) -> Future[list[Both]]:
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
        """The next job, and those that arrive within a few milliseconds if other requests are in flight."""
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
            answers = iter(self._predict(jobs[0].session, [one for job in jobs for one in job.pictures]))
        except Exception as error:
            if len(jobs) == 1:
                jobs[0].answers.set_exception(error)
            else:
                for job in jobs:
                    self._answer([job])
            return
        for job in jobs:
            job.answers.set_result(list(islice(answers, len(job.pictures))))

    def _predict(self, session: StreamSession, pictures: Sequence[Picture]) -> list[Both]:
        """Predictions of the adapted model and of the source, in passes of a bounded number of pixels."""
        answers: list[Both] = []
        while len(answers) < len(pictures):
            rest, found = pictures[len(answers) :], dict[int, Both]()
            count = self.factory.canvas.fitting((one.image for one in rest), self.limits.pass_pixels)
            for places, batch in self.factory.canvas.batches([one.image for one in rest[:count]]):
                batch = batch.contiguous(memory_format=torch.channels_last)  # faster for convolutions on a CPU
                both = compare(*self._logits(session, batch), [rest[place].size for place in places])
                if not all(math.isfinite(one.own.confidence) for one in both):
                    message = "the predictions of the adapted model are not finite: roll the stream back, or reset it"
                    raise Refused(message, "not-finite", 409)
                found.update(zip(places, both, strict=True))
            answers += [found[place] for place in range(count)]
        return answers

    def _logits(self, session: StreamSession, batch: Tensor) -> tuple[Tensor, Tensor]:
        """Logits of the adapted model and of the source; one after the other where the batch is small."""
        source_pass = partial(session.predictor.logits, self.factory.model, batch)
        if not self.factory.learns:
            return (source_pass(),) * 2
        parallel = self._source_thread.submit(source_pass) if len(batch) >= _LARGE else None
        try:
            own = session.predict(batch)
        finally:  # the source model is free when this function ends, also after an error
            source = source_pass() if parallel is None else parallel.result()
        return own, source
