"""Local: the engine that computes runs in processes of this machine, which may share a GPU."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections import deque
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection, wait
from typing import Any

import torch

from testdg.data.generate import depend_on_parent
from testdg.errors import UserError
from testdg.spec import RunSpec
from testdg.studies.engine import Failed, News, Running, run_one
from testdg.studies.storage import Out

GRACE = 20.0
"""Seconds in which a process that is terminated may save its state."""
RECHECK = 1.0
"""Seconds after which a run that another process has locked is tried again."""
_SPAWN = multiprocessing.get_context("spawn")  # a fork would copy the locks of torch's threads


class Local:
    """Computes `jobs` runs at a time, each in a process; if a process dies, only its run fails."""

    def __init__(self, jobs: int = 1) -> None:
        if jobs < 1:
            raise UserError(f"jobs must be at least 1; got {jobs}", code="wrong-jobs")
        self.jobs = jobs

    def run(self, specs: Sequence[RunSpec], out: Out) -> Generator[News, None, None]:
        """Compute all runs and yield their news; closing the generator ends the processes."""
        waiting = deque(enumerate(specs))
        jobs = min(self.jobs, len(specs))
        workers = [_Worker(out, threads_per_job(jobs)) for _ in range(jobs)]
        try:
            while busy := [worker for worker in workers if worker.take(waiting)]:
                ready = wait([worker.connection for worker in busy])
                for worker in [worker for worker in busy if worker.connection in ready]:
                    news = worker.receive()
                    if isinstance(news, Failed) and news.busy:
                        waiting.append((news.number, specs[news.number]))  # after all that are not locked
                    else:
                        yield news
        finally:
            for worker in workers:
                worker.terminate()
            for worker in workers:
                worker.stop()


def threads_per_job(jobs: int) -> int:
    """Torch threads of each process, so that together they have no more than there are cores, if that is possible."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(torch.get_num_threads(), cores // jobs))


class _Worker:
    """A process that computes one run after the other; it is started when needed, and again after it died."""

    def __init__(self, out: Out, threads: int) -> None:
        self.out, self.threads = out, threads
        self.process: Any = None
        self.connection: Any = None
        self.number: int | None = None

    def take(self, waiting: deque[tuple[int, RunSpec]]) -> bool:
        """Start the next run if this worker is free; False if nothing is left to do."""
        if self.number is None and waiting:
            if self.process is None:
                self._start()
            self.number, spec = waiting.popleft()
            with suppress(OSError):  # it died: `receive` notices
                self.connection.send((self.number, spec))
        return self.number is not None

    def receive(self) -> News:
        """The next news of the process; if it has died, the failure of its run."""
        assert self.number is not None
        try:
            news: News = self.connection.recv()
        except (EOFError, OSError):
            self.process.join()
            code = self.process.exitcode
            how = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
            self.stop()
            remedy = "look at the memory that is left, or use fewer --jobs, and start the command again"
            news = Failed(self.number, f"its process {how}: {remedy}")
        if not isinstance(news, Running):
            self.number = None
        return news

    def terminate(self) -> None:
        """Let a process that computes a run save its state and end."""
        if self.process is not None and self.number is not None:
            self.process.terminate()

    def stop(self) -> None:
        """End the process; its run resumes from the last saved state when it is started again."""
        if self.process is not None:
            if self.number is not None:
                self.process.join(GRACE)
            self.process.kill()
            self.process.join()
            self.connection.close()
            self.process = None

    def _start(self) -> None:
        self.connection, theirs = _SPAWN.Pipe()
        self.process = _SPAWN.Process(target=_work, args=(theirs, self.out, self.threads), daemon=True)
        with _interrupts_ignored():
            self.process.start()
        theirs.close()


@contextmanager
def _interrupts_ignored() -> Iterator[None]:
    """Start processes that ignore Ctrl-C from the first moment: this process handles it and ends them."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _work(connection: Connection, out: Out, threads: int) -> None:
    depend_on_parent()
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2):
        os.dup2(nowhere, stream)
    torch.set_num_threads(threads)
    while True:
        number, spec = connection.recv()
        connection.send(run_one(number, spec, out, connection.send, RECHECK))
