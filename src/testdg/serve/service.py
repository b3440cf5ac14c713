"""The server without HTTP: admission, decoding, learning, actions, saving and state."""

import logging
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Any

from testdg.data.pictures import Unreadable
from testdg.errors import visible
from testdg.runs.predictions import Comparison
from testdg.runs.session import BATCH_SIZE, Session
from testdg.serve.api import Action, ActionRequest, Done, ServerState, StreamState
from testdg.serve.limits import Limits, Refused
from testdg.serve.pictures import DecodedPicture, check_header, open_picture
from testdg.serve.session import StreamSession
from testdg.serve.storage import SessionPool, Storage
from testdg.serve.workers import BackgroundLearner, Batcher, lower_priority

LOG = logging.getLogger("testdg.serve")
_SAMPLE_EVERY = 0.25  # seconds between two pictures on the page
_LAST_LEARNING = 20.0  # seconds of learning while the server shuts down


class Service:
    """Everything behind the HTTP interface. Thread-safe."""

    def __init__(self, source: Session, folder: Path, limits: Limits) -> None:
        self.source, self.limits = source, limits
        self.storage = Storage(folder, source)
        self.pool = SessionPool(self.storage, limits)
        self.batcher = Batcher(source, limits)
        batch_size = BATCH_SIZE[source.model.task]
        self.learner = BackgroundLearner(self.pool, limits, batch_size, lambda: self.batcher.in_flight > 0)
        self.decoders = ThreadPoolExecutor(4, thread_name_prefix="decoder")
        self.large_decoders = ThreadPoolExecutor(
            max(1, (os.cpu_count() or 1) // 2), "large-decoder", initializer=lower_priority
        )
        """Decodes large pictures at low priority: they neither delay small ones nor slow predictions down."""
        self.background = ThreadPoolExecutor(4, thread_name_prefix="background")
        """Loads sessions, applies actions and collects states, which may wait for a step of learning."""
        self.started = time.time()
        self.refused = 0
        """Requests that were refused because of overload."""
        self.large_in_flight = 0
        self.decoded = 0
        """Bytes of the decoded pictures of all requests."""
        self._lock, self._sampled = threading.Lock(), 0.0
        self.closing = threading.Event()
        """Set when the server is about to shut down: event streams end, and large requests are refused."""
        self._over = threading.Event()
        self._saver = threading.Thread(target=self._save_regularly, name="saver", daemon=True)

    def start(self) -> None:
        for thread in (self.batcher.thread, self.learner.thread, self._saver):
            thread.start()

    def close(self) -> list[str]:
        """Finish queued work, save everything and end; returns a message for each loss."""
        self.closing.set()
        self.batcher.close(_LAST_LEARNING)
        left = self.learner.close(_LAST_LEARNING)
        self._over.set()
        self._saver.join()
        for executor in (self.decoders, self.large_decoders, self.background):
            executor.shutdown(cancel_futures=True)
        sessions = self.pool.resident()
        unsaved = [one.name for one in sessions if one.dirty and not self.storage.save(one)]
        self.storage.write_counts(sessions, ended=not unsaved)
        lost = [f"there was no time to learn from {left} pictures"] if left else []
        return lost + [f"{name} could not be saved: {self.problems()[0]}" for name in unsaved]

    # Predictions

    def check(self, files: Sequence[bytes]) -> list[int | Unreadable]:
        """Cost of decoding each picture, estimated from its header, or the reason to refuse it."""
        limits = self.limits
        # without resizing, memory and answers grow with the size of the pictures
        whole = self.source.canvas.size is None or self.source.model.task == "segmentation"
        most = min(limits.pixels, limits.pass_pixels) if whole else limits.pixels
        return [check_header(data, limits, most) for data in files]

    @contextmanager
    def admitted(self, pixels: int = 0) -> Iterator[Callable[[int], None]]:
        """Admit a request whose pictures have this many pixels, or refuse it.

        The value is a function that reserves bytes for decoded pictures; they are released at the end of the request.
        Large requests are counted separately, so that they cannot block small ones. Nor does the batcher wait for them:
        `in_flight` counts only requests that will soon need a prediction.
        """
        large, limits, reserved = pixels > self.limits.large, self.limits, 0
        with self._lock:
            if large:
                count, most, what = self.large_in_flight, limits.large_requests, "large requests"
            else:
                count, most, what = self.batcher.in_flight, limits.requests, "requests"
            if count >= most:
                self.refused += 1
                raise Refused(f"{most} {what} are in progress, which is the limit: try again later", "overloaded", 503)
            self.batcher.in_flight += not large
            self.large_in_flight += large

        def reserve(size: int) -> None:
            nonlocal reserved
            with self._lock:
                if self.decoded + size > limits.decoded:
                    self.refused += 1
                    raise Refused("the pictures of all requests take too much memory: try later", "overloaded", 503)
                self.decoded, reserved = self.decoded + size, reserved + size

        try:
            yield reserve
        finally:
            with self._lock:
                self.batcher.in_flight -= not large
                self.large_in_flight -= large
                self.decoded -= reserved

    def decode(
        self, files: Sequence[bytes], costs: Sequence[int | Unreadable]
    ) -> list[Future[DecodedPicture | Unreadable]]:
        large = sum(cost for cost in costs if isinstance(cost, int)) > self.limits.large
        executor = self.large_decoders if large else self.decoders
        return [executor.submit(self._decode, *one, large) for one in zip(files, costs, strict=True)]

    def _decode(self, data: bytes, cost: int | Unreadable, large: bool) -> DecodedPicture | Unreadable:
        if large and self.closing.is_set():  # the queue may take many seconds
            raise Refused("the server is shutting down", "closing", 503)
        if isinstance(cost, Unreadable):
            return cost
        return open_picture(data, self.source.canvas, self.source.model.channels)

    def count(
        self,
        session: StreamSession,
        pictures: Sequence[DecodedPicture],
        answers: Sequence[Comparison],
        label: int | None = None,
    ) -> None:
        """Count predictions, and show one on the page a few times per second; only the demonstration has a label."""
        with self._lock:
            session.counts.pictures += len(answers)
            session.counts.changed_by_adaptation += sum(one.differs for one in answers)
            show = time.monotonic() - self._sampled >= _SAMPLE_EVERY
            self._sampled = time.monotonic() if show else self._sampled
        session.timeline.add(answers, label)
        if show:
            place = max(range(len(answers)), key=lambda place: answers[place].differs)
            names = self.source.names
            self.decoders.submit(session.timeline.add_sample, pictures[place].image, answers[place], names)

    # Actions

    def act(self, name: str, action: Action, request: ActionRequest) -> Done:
        """Apply an action to a stream, log it and save the stream."""
        apply = {
            "reset": self._reset,
            "rollback": self._roll_back,
            "snapshot": self._snapshot,
            "freeze": self._freeze,
            "export": self._export,
        }[action]
        with self.pool.using(name) as session, session.lock:  # excludes learning and other actions
            result = apply(session, request)
            done, reason = result["done"], request.reason
            session.timeline.mark("action", f"{done}: {reason}" if reason else done)
            self.storage.log({"time": time.time(), "stream": name, "action": action, "reason": reason, **result})
            self.storage.save(session)  # so that a kill does not undo the action
            LOG.info("%s %s: %s (%s)", name, action, done, visible(reason) or "no reason given")
            return Done(stream=name, action=action, **result)

    def _reset(self, session: StreamSession, request: ActionRequest) -> dict[str, Any]:
        forgotten = self.learner.clear(session)
        session.reset()
        return {"done": "back to the source", "forgotten": forgotten}

    def _roll_back(self, session: StreamSession, request: ActionRequest) -> dict[str, Any]:
        numbers = self.storage.numbers(session.name, "snapshots")
        number = request.to if request.to is not None else max(numbers, default="healthy")
        if number != "healthy" and number not in numbers:
            known = ", ".join(map(str, numbers)) or "none"
            raise Refused(f"{session.name} has no snapshot {number}; it has {known}", "no-such-snapshot", 404)
        forgotten = self.learner.clear(session)
        folder = None if number == "healthy" else self.storage.path(session.name) / "snapshots" / str(number)
        target = session.roll_back(folder, request.reason or "requested by a user")
        return {"done": f"back to {target}", "forgotten": forgotten}

    def _snapshot(self, session: StreamSession, request: ActionRequest) -> dict[str, Any]:
        with self.storage.new_folder(session.name, "snapshots", self.limits.snapshots) as folder:
            session.online.save(folder, session.note())
        session.saved.snapshot = time.time()
        session.version += 1
        return {"done": f"snapshot {folder.name}", "number": int(folder.name)}

    def _freeze(self, session: StreamSession, request: ActionRequest) -> dict[str, Any]:
        session.frozen = request.frozen
        session.version += 1
        return {"done": "frozen: predicting without learning" if session.frozen else "learning again"}

    def _export(self, session: StreamSession, request: ActionRequest) -> dict[str, Any]:
        with self.storage.new_folder(session.name, "exports", self.limits.snapshots) as folder:
            session.export(folder)
        place = folder.relative_to(self.storage.folder).as_posix()
        return {"done": f"exported to {place} in the folder of the server", "folder": place}

    # State

    def problems(self) -> list[str]:
        found = list(self.storage.problems.values())
        for what, thread in (("prediction", self.batcher.thread), ("learning", self.learner.thread)):
            if not thread.is_alive() and not self.closing.is_set():
                found.append(f"the {what} thread has ended: restart the server")
        return found

    def state(self, name: str | None) -> ServerState:
        """State of the server, and of one of its streams."""
        with nullcontext() if name is None else self.pool.using(name) as session:
            return self._state(session)

    def _state(self, session: StreamSession | None) -> ServerState:
        server: dict[str, Any] = {
            "model": self.source.model.name,
            "method": self.source.adapter.name,
            "classes": self.source.names,
            "streams": self.pool.names(),
            "in_memory": [one.name for one in self.pool.resident()],
            "queue": len(self.learner),
            "uptime": round(time.time() - self.started, 1),
            "problems": self.problems(),
        }
        if session is None:
            return ServerState(**server, guard=self.source.online.guard is not None)
        guard, saved = session.online.guard, session.saved
        return StreamState(
            **server,
            **session.counts.model_dump(),
            guard=None if guard is None else dict[str, int](guard.counts.items()),
            stream=session.name,
            settings=asdict(self.source.adapter.settings),
            frozen=session.frozen,
            rate=round(session.timeline.rate(), 2),
            pause=0 if guard is None else guard.pause,
            state_bytes=saved.bytes,
            saved=saved.time,
            snapshot=saved.snapshot,
            lost=saved.lost,
            snapshots=self.storage.numbers(session.name, "snapshots"),
            exports=self.storage.numbers(session.name, "exports"),
        )

    def events(self, name: str, number: int, *, load: bool = False) -> dict[str, Any]:
        """The state of a stream, and its events after a number, as values for JSON.

        Watching a stream does not prevent moving it to disk. `load` loads it from there if there is room.
        """
        session = self.pool.acquire(name, use=False)
        if session is None and load and name in self.pool.names():
            try:
                self.pool.load(name, make=False)
                session = self.pool.acquire(name, use=False)
            except Refused:
                pass
        try:
            state = self._state(session)
            if session is None and name in state.streams:
                state.on_disk = True
            news = {"number": number} if session is None else session.timeline.since(number)
            return {"state": state.model_dump(exclude_unset=True), **news}
        finally:
            if session is not None:
                self.pool.release(session)

    def _save_regularly(self) -> None:
        while not self._over.wait(1.0):
            sessions = self.pool.resident()
            self.storage.write_counts(sessions)
            now = time.monotonic()
            due = [one.name for one in sessions if one.dirty and now - one.save_tried >= self.limits.save_every]
            for name in due:
                if (session := self.pool.acquire(name, use=False)) is None:
                    continue
                try:
                    self.storage.save(session)
                except Exception:  # the other streams must be saved all the same
                    LOG.exception("%s could not be saved", name)
                    self.storage.problems["states"] = "states are not being saved: see the log of the server"
                finally:
                    self.pool.release(session)
