"""The same function on many tasks: here, or in several processes that end with this one."""

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from typing import Any, TypeVar

import torch

from testdg.errors import UserError

Shared = TypeVar("Shared")
Task = TypeVar("Task")
Made = TypeVar("Made")

_work: list[Any] = []  # in a worker: the function and what all of its tasks share


@contextmanager
def workers(
    jobs: int, function: Callable[[Shared, Task], Made], shared: Shared
) -> Iterator[Callable[[Iterable[Task]], Iterator[Made]]]:
    """Give a `map` that calls function(shared, task), with results in the order of the tasks."""
    if jobs == 1:
        yield lambda tasks: (function(shared, task) for task in tasks)
        return
    context = multiprocessing.get_context("spawn")  # a fork would copy the locks of torch's threads
    executor = ProcessPoolExecutor(jobs, context, initializer=_start, initargs=(function, shared))
    try:
        yield lambda tasks: executor.map(_call, tasks)
    except BrokenProcessPool as error:
        raise UserError(f"one of {jobs} worker processes ended: it may lack memory; try fewer --jobs") from error
    finally:
        executor.shutdown(cancel_futures=True)


def _start(function: Callable[..., Any], shared: Any) -> None:
    """Make a worker ready: one thread, deaf to Ctrl-C (its parent hears it), and gone when its parent is."""
    torch.set_num_threads(1)
    depend_on_parent()
    _work[:] = [function, shared]


def depend_on_parent() -> None:
    """Leave Ctrl-C to the parent of this process, and end with it, however it ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _call(task: Any) -> Any:
    function, shared = _work
    return function(shared, task)
