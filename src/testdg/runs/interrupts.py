"""Ctrl-C and a request to end: the batch at hand is finished and the state is saved first."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def noticed() -> Iterator[Callable[[], bool]]:
    """Give a function that tells whether this process was asked to stop; asked again, it stops at once.

    Signals reach the main thread alone, so elsewhere nothing is noticed; one that is ignored stays so.
    """
    asked: list[int] = []
    before: dict[int, Any] = {}

    def notice(number: int, _: Any) -> None:
        asked.append(number)
        for other, handler in before.items():
            signal.signal(other, handler)

    if threading.current_thread() is threading.main_thread():
        for wanted in (signal.SIGINT, signal.SIGTERM):
            if signal.getsignal(wanted) not in (signal.SIG_IGN, None):
                before[wanted] = signal.signal(wanted, notice)
    try:
        yield lambda: bool(asked)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
