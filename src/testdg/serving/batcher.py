"""Predictions at once: requests that come together share a pass, and wait for nobody else."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import groupby, islice

import torch
from torch import Tensor

from testdg.serving.factory import Factory
from testdg.serving.failures import Conflict
from testdg.serving.limits import Limits
from testdg.serving.stream import Stream
from testdg.streaming.predictor import Answer, answer, difference

Size = tuple[int, int]
_LARGE = 8  # pictures whose two passes are worth a thread each


@dataclass(frozen=True)
class Answered:
    """What both models say of a picture; of a segmentation with the maps of both."""

    own: Answer
    source: Answer
    place: int

    @property
    def differs(self) -> float:
        """1 where adaptation changed the class; of a segmentation, the share of pixels that it changed."""
        return difference(self.own, self.source, self.place)


@dataclass(eq=False)
class Job:
    """Pictures of one request, at the size of the canvas, with their own heights and widths."""

    stream: Stream
    images: Sequence[Tensor]
    sizes: Sequence[Size]
    done: Future[list[Answered]] = field(default_factory=Future)


class Batcher:
    """One thread that predicts with adapted models, and one beside it for the source."""

    def __init__(self, factory: Factory, limits: Limits) -> None:
        self.factory, self.limits = factory, limits
        self.coming = 0
        """Requests that have begun and are not answered yet."""
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name="predictions", daemon=True)
        self._beside = ThreadPoolExecutor(1, thread_name_prefix="source")  # predicts at the same time

    def start(self) -> None:
        """Begin to predict."""
        self._thread.start()

    def submit(self, job: Job) -> Future[list[Answered]]:
        """Have pictures predicted."""
        self._jobs.put(job)
        return job.done

    def busy(self) -> bool:
        """Whether somebody waits for a prediction."""
        return self.coming > 0

    @property
    def alive(self) -> bool:
        """Whether it works."""
        return self._thread.is_alive()

    def close(self, seconds: float) -> None:
        """Predict what waits, and end."""
        self._jobs.put(None)
        self._thread.join(seconds)
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
            found = self._predict(jobs[0].stream, [job.images for job in jobs], [job.sizes for job in jobs])
        except Exception as error:
            if len(jobs) == 1:
                _set(jobs[0], error)
            else:
                for job in jobs:
                    self._answer([job])
            return
        for job, answers in zip(jobs, found, strict=True):
            _set(job, answers)

    @torch.no_grad()
    def _predict(
        self, stream: Stream, images: list[Sequence[Tensor]], sizes: list[Sequence[Size]]
    ) -> list[list[Answered]]:
        flat, flat_sizes = [one for part in images for one in part], [one for part in sizes for one in part]
        found: list[Answered] = []
        for part in self._passes(flat):
            found += self._pass(stream, flat[part], flat_sizes[part])
        order = iter(found)
        return [list(islice(order, len(part))) for part in images]

    def _passes(self, images: Sequence[Tensor]) -> Iterator[slice]:
        """Pictures in parts that the memory holds."""
        begin = pixels = 0
        for place, image in enumerate(images):
            more = self.factory.canvas.pixels(image)
            if place > begin and pixels + more > self.limits.pass_pixels:
                yield slice(begin, place)
                begin, pixels = place, 0
            pixels += more
        yield slice(begin, len(images))

    def _pass(self, stream: Stream, images: Sequence[Tensor], sizes: Sequence[Size]) -> list[Answered]:
        found: dict[int, Answered] = {}
        for places, batch in self.factory.canvas.batches(images):
            batch = batch.contiguous(memory_format=torch.channels_last)  # which convolutions on a CPU like better
            own, source = self._both(stream, batch, [sizes[place] for place in places])
            if not all(map(_finite, own.confidences)):
                raise Conflict("the adapted model's answer is not a finite number: roll the stream back, or reset it")
            found.update({place: Answered(own, source, number) for number, place in enumerate(places)})
        return [found[place] for place in range(len(images))]

    def _both(self, stream: Stream, batch: Tensor, sizes: Sequence[Size]) -> tuple[Answer, Answer]:
        """The adapted model's answer and the source's; of small batches one after the other, as threads cost more."""
        if not self.factory.learns:
            return (answer(stream.predictor.by_source(batch), sizes),) * 2
        beside = self._beside.submit(stream.predictor.by_source, batch) if len(batch) >= _LARGE else None
        try:
            own = stream.predict(batch)
        finally:  # whatever happens, the other thread is done with the source
            source = stream.predictor.by_source(batch) if beside is None else beside.result()
        return answer(own, sizes), answer(source, sizes)


def _finite(value: float) -> bool:
    return value == value


def _set(job: Job, outcome: list[Answered] | Exception) -> None:
    """Tell whoever waits, if anybody still does."""
    if not job.done.set_running_or_notify_cancel():
        return
    if isinstance(outcome, Exception):
        job.done.set_exception(outcome)
    else:
        job.done.set_result(outcome)
