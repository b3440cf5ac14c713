"""Local: specs in processes of this machine, which may share a GPU."""

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
"""Seconds in which a process that is asked to end may save its state."""
RECHECK = 1.0
"""Seconds after which a spec that another process is at is tried again."""
_SPAWN = multiprocessing.get_context("spawn")  # a fork would copy the locks of torch's threads


class Local:
    """Runs as many specs at a time as `jobs` says; a process that dies takes only its own spec with it."""

    def __init__(self, jobs: int = 1) -> None:
        if jobs < 1:
            raise UserError(f"jobs must be at least 1; got {jobs}", code="wrong-jobs")
        self.jobs = jobs

    def run(self, specs: Sequence[RunSpec], out: Out) -> Generator[News, None, None]:
        """Run all specs and tell what becomes of them; closing the generator ends the processes."""
        waiting = deque(enumerate(specs))
        jobs = min(self.jobs, len(specs))
        workers = [_Worker(out, threads_per_job(jobs)) for _ in range(jobs)]
        try:
            while busy := [worker for worker in workers if worker.take(waiting)]:
                ready = wait([worker.connection for worker in busy])
                for worker in [worker for worker in busy if worker.connection in ready]:
                    news = worker.hear()
                    if isinstance(news, Failed) and news.busy:
                        waiting.append((news.number, specs[news.number]))  # after all that nobody is at
                    else:
                        yield news
        finally:
            for worker in workers:
                worker.ask_to_end()
            for worker in workers:
                worker.stop()


def threads_per_job(jobs: int) -> int:
    """Torch threads of each process, so that together they have no more than there are cores, if that is possible."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(torch.get_num_threads(), cores // jobs))


class _Worker:
    """A process that runs one spec after the other; it is started when it is needed, and again when it died."""

    def __init__(self, out: Out, threads: int) -> None:
        self.out, self.threads = out, threads
        self.process: Any = None
        self.connection: Any = None
        self.number: int | None = None

    def take(self, waiting: deque[tuple[int, RunSpec]]) -> bool:
        """Begin the next spec if this worker is free; False where there is nothing left to do."""
        if self.number is None and waiting:
            if self.process is None:
                self._start()
            self.number, spec = waiting.popleft()
            with suppress(OSError):  # it died: `hear` finds out
                self.connection.send((self.number, spec))
        return self.number is not None

    def hear(self) -> News:
        """What the process tells next; the end of its spec if it has died."""
        assert self.number is not None
        try:
            news: News = self.connection.recv()
        except (EOFError, OSError):
            news = Failed(self.number, self._obituary())
        if not isinstance(news, Running):
            self.number = None
        return news

    def ask_to_end(self) -> None:
        """Ask a process that is at a spec to save its state and to end."""
        if self.process is not None and self.number is not None:
            self.process.terminate()

    def stop(self) -> None:
        """End the process; whatever it was doing goes on from its last saved state another time."""
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
        with _deaf():
            self.process.start()
        theirs.close()

    def _obituary(self) -> str:
        self.process.join()
        code = self.process.exitcode
        how = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
        self.stop()
        return f"its process {how}: look at the memory that is left, or use fewer --jobs, and start the command again"


@contextmanager
def _deaf() -> Iterator[None]:
    """Start processes that never hear Ctrl-C, from their first moment: this one hears it and ends them."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _work(connection: Connection, out: Out, threads: int) -> None:
    """Run specs until there are no more."""
    depend_on_parent()
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2):
        os.dup2(nowhere, stream)
    torch.set_num_threads(threads)
    while True:
        number, spec = connection.recv()
        connection.send(run_one(number, spec, out, connection.send, RECHECK))
