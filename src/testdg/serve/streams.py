"""All streams of a server: a few in memory, the others on disk; the least recently used makes room."""

import re
import threading
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager

from testdg.errors import visible
from testdg.serve.limits import Limits, Refused
from testdg.serve.store import Store
from testdg.serve.stream import Stream

_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,47}")


def check_name(name: str) -> str:
    """A name of a stream, which is also that of its folder."""
    if _NAME.fullmatch(name) is None:
        told = "up to 48 small letters, digits, - and _, the first a letter or a digit"
        raise Refused(f"a stream is named by {told}; got {visible(name)[:60]!r}")
    return name


class Streams:
    """Streams by name, made when they are first asked for."""

    def __init__(self, store: Store, limits: Limits) -> None:
        self.store, self.limits = store, limits
        self._lock = threading.Lock()
        self._resident: OrderedDict[str, Stream] = OrderedDict()
        self._loading = threading.Lock()
        self._known = set(store.known())

    def resident(self) -> list[Stream]:
        """Those in memory, the most recently used last."""
        with self._lock:
            return list(self._resident.values())

    def names(self) -> list[str]:
        """All that there are, on disk or in memory."""
        with self._lock:
            return sorted(self._known | self._resident.keys())

    def at_hand(self, name: str, *, use: bool = True) -> Stream | None:
        """A stream, held in memory until `leave`, if it is there already; watching is no `use`."""
        with self._lock:
            stream = self._resident.get(name)
            if stream is not None:
                stream.users += 1
                if use:
                    self._resident.move_to_end(name)
            return stream

    def enter(self, name: str, *, make: bool = True) -> Stream:
        """A stream, held in memory until `leave`; from disk, or new if it may be made."""
        if (stream := self.at_hand(check_name(name))) is not None:
            return stream
        with self._loading:  # one at a time, so that none is there twice
            if (stream := self.at_hand(name)) is not None:
                return stream
            self._check_new(name, make)
            self._make_room()
            stream = self.store.load(name)
            with self._lock:
                stream.users += 1
                self._resident[name] = stream
                self._known.add(name)
            return stream

    def _check_new(self, name: str, make: bool) -> None:
        with self._lock:
            if name in self._known:
                return
            if not make:
                raise Refused(f"there is no stream {name!r}: it begins with its first picture")
            if len(self._known) >= self.limits.streams:
                raise Refused(f"there are {self.limits.streams} streams already, which is the most", 503)

    def hold(self, stream: Stream) -> None:
        """Keep a stream in memory that is in use, until another `leave`."""
        with self._lock:
            stream.users += 1

    def leave(self, stream: Stream) -> None:
        """Let a stream go, which may be written to disk from now on."""
        with self._lock:
            stream.users -= 1

    @contextmanager
    def using(self, name: str, *, make: bool = False) -> Iterator[Stream]:
        """A stream for a while."""
        stream = self.enter(name, make=make)
        try:
            yield stream
        finally:
            self.leave(stream)

    def _make_room(self) -> None:
        """Write streams that nobody uses to disk until there is room for one more."""
        while True:
            with self._lock:
                if len(self._resident) < self.limits.resident:
                    return
                idle = next((one for one in self._resident.values() if not one.users), None)
            if idle is None:
                raise Refused(
                    f"{self.limits.resident} streams are in use, which is the most in memory: come again", 503
                )
            if idle.dirty and not self.store.save(idle):
                problem = self.store.problems.get("states", "the disk is full")
                raise Refused(f"there is no room for another stream: {problem}", 507)
            with self._lock:
                if not idle.users and not idle.dirty:
                    self._resident.pop(idle.name, None)
