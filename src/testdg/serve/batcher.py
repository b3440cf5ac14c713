"""Predictions at once: requests that come together share a pass, and wait for nobody else."""

import math
import queue
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby, islice

import torch
from torch import Tensor

from testdg.runs.predictor import Both, compare
from testdg.serve.factory import Factory
from testdg.serve.limits import Limits, Refused
from testdg.serve.pictures import Picture
from testdg.serve.stream import Stream

_LARGE = 8  # pictures whose two passes are worth a thread each


@dataclass(eq=False)
class Job:
    """Pictures of one request."""

    stream: Stream
    pictures: Sequence[Picture]
    done: Future[list[Both]] = field(default_factory=Future)


class Batcher:
    """One thread that predicts with adapted models, and one beside it for the source."""

    def __init__(self, factory: Factory, limits: Limits) -> None:
        self.factory, self.limits = factory, limits
        self.coming = 0
        """Requests that have begun and are not answered yet."""
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self.thread = threading.Thread(target=self._work, name="predictions", daemon=True)
        self._beside = ThreadPoolExecutor(1, thread_name_prefix="source")  # predicts at the same time

    def ask(self, stream: Stream, pictures: Sequence[Picture]) -> Future[list[Both]]:
        """Have pictures predicted."""
        job = Job(stream, pictures)
        self._jobs.put(job)
        return job.done

    def close(self, seconds: float) -> None:
        """Predict what waits, and end."""
        self._jobs.put(None)
        self.thread.join(seconds)
        self._beside.shutdown()

    def _work(self) -> None:
        while (jobs := self._gathered()) is not None:
            for _, same in groupby(sorted(jobs, key=lambda job: id(job.stream)), key=lambda job: id(job.stream)):
                self._answer(list(same))

    def _gathered(self) -> list[Job] | None:
        """The next job, and those that come within a few milliseconds, if others are on their way."""
        first = self._jobs.get()
        if first is None:
            return None
        jobs, until = [first], time.monotonic() + self.limits.gather
        with suppress(queue.Empty):
            while len(jobs) < min(self.coming, self.limits.pictures):
                job = self._jobs.get(timeout=max(0.0, until - time.monotonic()))
                if job is None:
                    self._jobs.put(None)
                    break
                jobs.append(job)
        return jobs

    def _answer(self, jobs: list[Job]) -> None:
        """Predict the jobs of one stream together; where that fails, each alone, so that one harms no other."""
        try:
            found = iter(self._predict(jobs[0].stream, [one for job in jobs for one in job.pictures]))
        except Exception as error:
            if len(jobs) == 1:
                _set(jobs[0], error)
            else:
                for job in jobs:
                    self._answer([job])
            return
        for job in jobs:
            _set(job, list(islice(found, len(job.pictures))))

    def _predict(self, stream: Stream, pictures: Sequence[Picture]) -> list[Both]:
        """Both answers, in passes that the memory holds."""
        found: list[Both] = []
        while len(found) < len(pictures):
            left = pictures[len(found) :]
            count = self.factory.canvas.fitting((one.image for one in left), self.limits.pass_pixels)
            found += self._pass(stream, left[:count])
        return found

    def _pass(self, stream: Stream, pictures: Sequence[Picture]) -> list[Both]:
        found: dict[int, Both] = {}
        for places, batch in self.factory.canvas.batches([one.image for one in pictures]):
            batch = batch.contiguous(memory_format=torch.channels_last)  # which convolutions on a CPU like better
            answers = compare(*self._logits(stream, batch), [pictures[place].size for place in places])
            if not all(math.isfinite(one.own.confidence) for one in answers):
                raise Refused(
                    "the adapted model's answer is not a finite number: roll the stream back, or reset it", 409
                )
            found.update(zip(places, answers, strict=True))
        return [found[place] for place in range(len(pictures))]

    def _logits(self, stream: Stream, batch: Tensor) -> tuple[Tensor, Tensor]:
        """Those of the adapted model and the source's; of small batches one after the other, as threads cost more."""
        by_source = partial(stream.predictor.logits, self.factory.model, batch)
        if not self.factory.learns:
            return (by_source(),) * 2
        beside = self._beside.submit(by_source) if len(batch) >= _LARGE else None
        try:
            own = stream.predict(batch)
        finally:  # whatever happens, the other thread is done with the source
            source = by_source() if beside is None else beside.result()
        return own, source


def _set(job: Job, outcome: list[Both] | Exception) -> None:
    """Tell whoever waits, if anybody still does."""
    if not job.done.set_running_or_notify_cancel():
        return
    if isinstance(outcome, Exception):
        job.done.set_exception(outcome)
    else:
        job.done.set_result(outcome)
