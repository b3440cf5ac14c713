"""The server without its address: streams, predictions, learning, saving and actions."""

import logging
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from testdg.data.pictures import Unreadable
from testdg.errors import visible
from testdg.runs.predictor import Both
from testdg.serve.batcher import Batcher
from testdg.serve.factory import Factory
from testdg.serve.learner import Learner
from testdg.serve.limits import Limits, Refused
from testdg.serve.pictures import Picture, open_picture
from testdg.serve.store import Store
from testdg.serve.stream import Fate, Stream
from testdg.serve.streams import Streams

LOG = logging.getLogger("testdg.serve")
_SHOWN_EVERY = 0.25  # seconds between two pictures on the page
_LAST_LEARNING = 20.0  # seconds that the end waits for learning


class Service:
    """Everything behind the address; used from any thread."""

    def __init__(self, factory: Factory, folder: Path, limits: Limits) -> None:
        self.factory, self.limits = factory, limits
        self.store = Store(folder, factory)
        self.streams = Streams(self.store, limits)
        self.batcher = Batcher(factory, limits)
        self.learner = Learner(self.streams, limits, factory.setup.batch_size, lambda: self.batcher.coming > 0)
        self.workers = ThreadPoolExecutor(4, thread_name_prefix="decoder")
        self.errands = ThreadPoolExecutor(4, thread_name_prefix="errand")
        """Load, act and tell, which may wait for a step; decoding waits for nobody."""
        self.begun = time.time()
        self.refused = 0
        """Requests that were turned away, as there were too many."""
        self.decoded = 0
        """Bytes of the pictures of all requests."""
        self._counting, self._shown = threading.Lock(), 0.0
        self.closing = threading.Event()
        """Set when the server is asked to end, so that pages let go."""
        self._over = threading.Event()
        self._saver = threading.Thread(target=self._keep_saving, name="saver", daemon=True)

    def start(self) -> None:
        """Begin to work."""
        for thread in (self.batcher.thread, self.learner.thread, self._saver):
            thread.start()

    def close(self) -> list[str]:
        """Finish what waits, save everything, and end; says what had to be left, nothing where all went well."""
        self.batcher.close(_LAST_LEARNING)
        left = self.learner.close(_LAST_LEARNING)
        self._over.set()
        self._saver.join()
        for pool in (self.workers, self.errands):
            pool.shutdown()
        streams = self.streams.resident()
        unsaved = [stream.name for stream in streams if stream.dirty and not self.store.save(stream)]
        self.store.sign(streams, ended=not unsaved)
        lost = [f"{left} pictures were not learnt from, as that took too long"] if left else []
        return lost + [f"{name} could not be saved: {self.problems()[0]}" for name in unsaved]

    # Predictions

    @contextmanager
    def admitted(self) -> Iterator[None]:
        """Let a request in, if there are not too many."""
        with self._counting:
            if self.batcher.coming >= self.limits.requests:
                self.refused += 1
                raise Refused(f"{self.limits.requests} requests are waiting, which is the most: come again", 503)
            self.batcher.coming += 1
        try:
            yield
        finally:
            with self._counting:
                self.batcher.coming -= 1

    def read(self, files: Sequence[bytes]) -> list[Picture | str]:
        """Decode pictures, to be `let_go`; of those that cannot be read, the reason."""
        read: list[Picture | str] = []
        try:
            for data in files:
                one = self._read(data)
                self._hold(_bytes([one]))
                read.append(one)
        except BaseException:  # whatever it is, nobody else can let go of the others
            self.let_go(read)
            raise
        return read

    def _read(self, data: bytes) -> Picture | str:
        try:
            return open_picture(data, self.limits, self.factory.canvas, self.factory.model)
        except Unreadable as error:
            return str(error)

    def let_go(self, read: Sequence[Picture | str]) -> None:
        """Note that pictures are no longer needed for an answer."""
        self._hold(-_bytes(read))

    def _hold(self, size: int) -> None:
        with self._counting:
            if size > 0 and self.decoded + size > self.limits.decoded:
                self.refused += 1
                raise Refused("the pictures of all requests are too large together: come again, with smaller ones", 503)
            self.decoded += size

    def note(
        self, stream: Stream, pictures: Sequence[Picture], answers: Sequence[Both], label: int | None = None
    ) -> None:
        """Count predictions, and show one now and then; a demonstration knows the label of its picture."""
        with self._counting:
            stream.counts.pictures += len(answers)
            stream.counts.changed_by_adaptation += sum(one.differs for one in answers)
            show = time.monotonic() - self._shown >= _SHOWN_EVERY
            self._shown = time.monotonic() if show else self._shown
        stream.timeline.add(answers, label)
        if show:
            place = max(range(len(answers)), key=lambda place: answers[place].differs)
            self.workers.submit(stream.timeline.show, pictures[place].image, answers[place], self.factory.names)

    def learn(
        self, stream: Stream, pictures: Sequence[Picture], *, wait: bool = False
    ) -> tuple[str, list[Future[Fate]]]:
        """Have pictures learnt from, later; says what becomes of them, with a future for each to `wait` for."""
        if not self.factory.learns or stream.frozen:
            return "frozen" if stream.frozen else "off", []
        fates = self.learner.offer(stream, [one.image for one in pictures], wait=wait)
        return ("queued", fates) if fates is not None else ("dropped", [])

    # Actions

    def act(self, name: str, action: str, values: dict[str, Any], reason: str) -> dict[str, Any]:
        """Do something to the model of a stream, and log it."""
        with self.streams.using(name) as stream, stream.lock:  # no step is under way, and no other action
            told = getattr(self, f"_{action}")(stream, values, reason)
            stream.timeline.mark("action", f"{told['done']}{f': {reason}' if reason else ''}")
            record = {"time": time.time(), "stream": name, "action": action, "reason": reason, **told}
            self.store.log(record)
            self.store.save(stream)  # a kill must not bring back what somebody has undone
            LOG.info("%s %s: %s (%s)", name, action, told["done"], visible(reason) or "no reason given")
            return {"stream": name, "action": action, **told}

    def _reset(self, stream: Stream, values: dict[str, Any], reason: str) -> dict[str, Any]:
        forgotten = self.learner.forget(stream)
        stream.reset()
        return {"done": "back to the source", "forgotten": forgotten}

    def _rollback(self, stream: Stream, values: dict[str, Any], reason: str) -> dict[str, Any]:
        numbers = self.store.numbers(stream.name, "snapshots")
        number = values.get("to", numbers[-1] if numbers else None)
        if number == "healthy":
            number = None
        elif number is not None and number not in numbers:
            known = ", ".join(map(str, numbers)) or "none"
            raise Refused(f"{stream.name} has no snapshot {number}; it has {known}", 404)
        forgotten = self.learner.forget(stream)
        folder = None if number is None else self.store.path(stream.name) / "snapshots" / str(number)
        told = stream.roll_back(folder, reason or "somebody asked for it")
        return {"done": f"back to {told}", "forgotten": forgotten}

    def _snapshot(self, stream: Stream, values: dict[str, Any], reason: str) -> dict[str, Any]:
        with self.store.place(stream.name, "snapshots", self.limits.snapshots) as folder:
            stream.adapter.save(folder, stream.note())
        stream.saved.snapshot = time.time()
        stream.version += 1
        return {"done": f"snapshot {folder.name}", "number": int(folder.name)}

    def _freeze(self, stream: Stream, values: dict[str, Any], reason: str) -> dict[str, Any]:
        stream.frozen = values.get("frozen", True)
        stream.version += 1
        return {"done": "frozen: it predicts and learns nothing" if stream.frozen else "learning again"}

    def _export(self, stream: Stream, values: dict[str, Any], reason: str) -> dict[str, Any]:
        with self.store.place(stream.name, "exports", self.limits.snapshots) as folder:
            stream.export(folder)
        place = folder.relative_to(self.store.folder).as_posix()
        return {"done": f"exported to {place} in the folder of the server", "folder": place}

    # Health

    def problems(self) -> list[str]:
        """What is wrong with the server as a whole, in words; nothing where all is well."""
        threads = {"predicting": self.batcher.thread, "learning": self.learner.thread}
        dead = [] if self.closing.is_set() else [what for what, one in threads.items() if not one.is_alive()]
        return [*self.store.problems.values(), *(f"{what} has ended: restart, and see the log" for what in dead)]

    def state(self, name: str | None) -> dict[str, Any]:
        """The server, and one of its streams."""
        state: dict[str, Any] = {
            "model": self.factory.model.name,
            "method": self.factory.method.name,
            "guard": self.factory.guarded,
            "classes": self.factory.names,
            "streams": self.streams.names(),
            "in_memory": [stream.name for stream in self.streams.resident()],
            "queue": len(self.learner),
            "uptime": round(time.time() - self.begun, 1),
            "problems": self.problems(),
        }
        if name is None:
            return state
        with self.streams.using(name) as stream:
            return {**state, **self._about(stream)}

    def _about(self, stream: Stream) -> dict[str, Any]:
        kept = {kind: self.store.numbers(stream.name, kind) for kind in ("snapshots", "exports")}
        return {"settings": self.factory.describe()["settings"], **stream.state(), **kept}

    def news(self, name: str, number: int, *, load: bool = False) -> dict[str, Any]:
        """What a page does not know yet of a stream, and the state; it watches without keeping a stream in memory."""
        if name not in self.streams.names():
            return {"state": self.state(None), "number": number}  # it begins with its first picture
        stream = self._seen(name, load)
        if stream is None:
            return {"state": {**self.state(None), "on_disk": True}, "number": number}
        try:
            return {"state": {**self.state(None), **self._about(stream)}, **stream.timeline.since(number)}
        finally:
            self.streams.leave(stream)

    def _seen(self, name: str, load: bool) -> Stream | None:
        """A stream to look at, which is brought back from disk only where there is room."""
        try:
            return self.streams.at_hand(name, use=False) or (self.streams.enter(name, make=False) if load else None)
        except Refused:
            return None

    def _keep_saving(self) -> None:
        """Once a second a sign of life; states when it is time."""
        while not self._over.wait(1.0):
            streams = self.streams.resident()
            self.store.sign(streams)
            now = time.monotonic()
            due = [one.name for one in streams if one.dirty and now - one.tried >= self.limits.save_every]
            for name in due:
                if (stream := self.streams.at_hand(name, use=False)) is not None:
                    self._save_quietly(stream)

    def _save_quietly(self, stream: Stream) -> None:
        try:
            self.store.save(stream)
        except Exception:  # the others must be saved all the same
            LOG.exception("%s could not be saved", stream.name)
            self.store.problems["states"] = "states are not being saved: see the log of the server"
        finally:
            self.streams.leave(stream)


def _bytes(read: Sequence[Picture | str]) -> int:
    return sum(one.image.nbytes for one in read if isinstance(one, Picture))
