"""Connections on which no request begins: uvicorn would wait for them for ever, and has room for so many alone."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any


class Silence:
    """Ends connections that are silent, or in the middle of a head, for too long."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._since: dict[Any, tuple[Any, float]] = {}

    def end(self, connections: Iterable[Any]) -> None:
        """Look at all connections, as often as you like; `cycle` is the last request of each."""
        now, there = time.monotonic(), {}
        for one in list(connections):
            request = one.cycle
            if request is None or request.response_complete:
                last, since = self._since.get(one, (None, now))
                there[one] = (request, since if last is request else now)
        self._since = there
        for one, (_, since) in there.items():
            if now - since > self.seconds:
                one.transport.close()
