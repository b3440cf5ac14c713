"""Streams on disk and in memory: the folder of a server, and the pool of sessions that are loaded from it.

OUT/server.json             model, method and settings to which all states belong
OUT/alive.json              counts of all streams, a second old at most, and whether the server shut down cleanly
OUT/actions.jsonl           all actions with time and reason
OUT/streams/NAME/state      the saved adapter, replaced atomically
OUT/streams/NAME/snapshots  states saved on request
OUT/streams/NAME/exports    adapted models
"""

import json
import re
import shutil
import threading
import time
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from testdg.bounds import read_json
from testdg.core.state import TENSORS, VALUES, tidy
from testdg.errors import UserError, visible
from testdg.files import replace_text, writing
from testdg.runs.session import Session
from testdg.serve.limits import Limits, Refused
from testdg.serve.session import StreamSession

_MOST_LOG = 8 << 20  # bytes of a log, after which a new one is started; the previous one stays
_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,47}")


class Storage:
    """The folder of a server. Failures to write are noted in `problems` until a later attempt succeeds."""

    def __init__(self, folder: Path, source: Session) -> None:
        self.folder, self.source = folder, source
        self.problems: dict[str, str] = {}
        """What cannot be written at the moment, as sentences."""
        self._log_lock = threading.Lock()
        with writing(folder):
            (folder / "streams").mkdir(parents=True, exist_ok=True)
            for path in folder.glob("streams/*"):
                tidy(path / "state")
        self._check_owner()
        self._last_counts: dict[str, dict[str, int]] = {}
        """Counts of the last server's streams, if it was killed."""
        with suppress(OSError, ValueError, AttributeError, KeyError, TypeError):
            about = read_json(folder / "alive.json")
            self._last_counts = {} if about.get("ended") else dict(about["streams"])

    def _check_owner(self) -> None:
        """Refuse the folder of another model, method or setting."""
        adapter = self.source.adapter
        about = {"method": adapter.name, "settings": asdict(adapter.settings), **adapter.origin}
        about = json.loads(json.dumps({**about, "classes": self.source.names}))
        path = self.folder / "server.json"
        if path.exists():
            try:
                found = read_json(path)
            except (OSError, ValueError) as error:
                message = f"{path} cannot be read: {error}; choose another folder with --out"
                raise UserError(message, "damaged-file") from error
            if found != about:
                other = next((key for key in about if found.get(key) != about[key]), "something else")
                message = f"{self.folder} belongs to a server with another {other}: choose another --out"
                raise UserError(message, "other-server")
        with writing(self.folder):
            replace_text(path, json.dumps(about, indent=1) + "\n")

    def path(self, name: str) -> Path:
        return self.folder / "streams" / name

    def names(self) -> list[str]:
        """Streams that have a saved state."""
        return sorted(path.parent.name for path in self.folder.glob("streams/*/state") if path.is_dir())

    # States

    def save(self, session: StreamSession) -> bool:
        """Save a stream and return whether that succeeded; if not, `problems` says why."""
        folder = self.path(session.name) / "state"
        session.save_tried = time.monotonic()
        try:
            with session.lock:
                note, version = session.note(), session.version
                session.online.save(folder, note)
                size = sum((folder / name).stat().st_size for name in (TENSORS, VALUES))
                counts = {"time": note["time"], "pictures": note["counts"]["pictures"]}
                session.saved = replace(session.saved, **counts, version=version, bytes=size)
        except (UserError, OSError) as error:
            # the path stays secret: /healthz answers everybody
            cause = error if isinstance(error, OSError) else error.__cause__
            reason = getattr(cause, "strerror", None) or "the disk cannot be written"
            self.problems["states"] = f"states are not being saved: {reason}"
            return False
        self.problems.pop("states", None)
        return True

    def load(self, name: str) -> StreamSession:
        """Load a stream or create it. A damaged state is renamed, and the stream starts again from the source."""
        folder, source = self.path(name) / "state", self.source
        if not folder.is_dir():
            session = StreamSession(name, source.fresh())
        else:
            try:
                restored = source.fresh()
                note = restored.restore(folder)
                session = StreamSession(name, restored)
                session.load_note(note)
            except (ValueError, KeyError, TypeError) as error:
                renamed = self.path(name) / f"damaged-{int(time.time())}"
                folder.rename(renamed)
                session = StreamSession(name, source.fresh())
                session.saved.lost = f"the saved state was damaged and renamed to {renamed.name}: the stream restarted"
                session.timeline.mark("note", f"{session.saved.lost} ({error})")
                return session
        last = self._last_counts.pop(name, None)
        lost = 0 if last is None else last["learnt"] - session.counts.learnt
        if lost > 0:
            saved = session.saved.time
            since = "the start" if saved is None else time.strftime("%H:%M:%S", time.localtime(saved))
            session.saved.lost = f"the server was killed: what it learnt from {lost} pictures after {since} is lost"
            session.timeline.mark("note", session.saved.lost)
        return session

    def write_counts(self, sessions: Iterable[StreamSession], *, ended: bool = False) -> None:
        """Write the counts of all streams, from which the next server computes what a kill has cost."""
        seen = {one.name: {"pictures": one.counts.pictures, "learnt": one.counts.learnt} for one in sessions}
        text = json.dumps({"time": time.time(), "ended": ended, "streams": {**self._last_counts, **seen}})
        try:
            fresh = self.folder / ".alive.json"  # without fsync: a power cut costs this sentence, not the state
            fresh.write_text(text, encoding="utf-8")
            fresh.replace(self.folder / "alive.json")
            self.problems.pop("life", None)
        except OSError as error:
            self.problems["life"] = f"nothing can be written: {error.strerror or error}"

    def log(self, record: dict[str, Any]) -> None:
        path = self.folder / "actions.jsonl"
        try:
            with self._log_lock:
                if path.exists() and path.stat().st_size > _MOST_LOG:
                    path.replace(path.with_suffix(".old.jsonl"))
                with path.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(record) + "\n")
            self.problems.pop("actions", None)
        except OSError as error:
            self.problems["actions"] = f"actions are not being logged: {error.strerror or error}"

    # Snapshots and exports

    @contextmanager
    def new_folder(self, name: str, kind: str, most: int) -> Iterator[Path]:
        """A numbered folder for a new snapshot or export; afterwards only the last `most` remain.

        If writing fails, the folder is deleted and the request refused.
        """
        numbers = self.numbers(name, kind)
        folder = self.path(name) / kind / str(numbers[-1] + 1 if numbers else 1)
        try:
            yield folder
        except BaseException as error:
            shutil.rmtree(folder, ignore_errors=True)
            if isinstance(error, Refused) or not isinstance(error, UserError | OSError):
                raise
            reason = getattr(error, "strerror", None) or error
            raise Refused(f"writing failed: {reason}", "not-written", 409) from error
        for number in numbers[: max(0, len(numbers) - most + 1)]:
            shutil.rmtree(self.path(name) / kind / str(number), ignore_errors=True)

    def numbers(self, name: str, kind: str) -> list[int]:
        found = (path.name for path in (self.path(name) / kind).glob("*") if path.is_dir())
        return sorted(int(number) for number in found if number.isdecimal())


class SessionPool:
    """Sessions by name, loaded on first use; the least recently used ones are moved to disk.

    `acquire` and `release` count the users of a session: only a session without users may leave the memory.
    """

    def __init__(self, storage: Storage, limits: Limits) -> None:
        self.storage, self.limits = storage, limits
        self._lock = threading.Lock()
        self._resident: OrderedDict[str, StreamSession] = OrderedDict()
        self._loading = threading.Lock()
        self._known = set(storage.names())

    def resident(self) -> list[StreamSession]:
        """Sessions in memory, the most recently used one last."""
        with self._lock:
            return list(self._resident.values())

    def names(self) -> list[str]:
        """All streams, on disk or in memory."""
        with self._lock:
            return sorted(self._known)

    def acquire(self, name: str, *, use: bool = True) -> StreamSession | None:
        """A session for use until `release`, or None if it is not in memory; watching does not count as `use`."""
        with self._lock:
            session = self._resident.get(name)
            if session is not None:
                session.users += 1
                if use:
                    self._resident.move_to_end(name)
            return session

    def release(self, session: StreamSession) -> None:
        with self._lock:
            session.users -= 1

    def load(self, name: str, *, make: bool = True) -> None:
        """Bring a stream into memory; `make` a new one if it does not exist."""
        check_name(name)
        with self._loading:  # one at a time, so that no stream is loaded twice
            with self._lock:
                if name in self._resident:
                    return
                if name not in self._known and not make:
                    message = f"there is no stream {name!r}: a stream starts with its first picture"
                    raise Refused(message, "no-such-stream")
                if name not in self._known and len(self._known) >= self.limits.streams:
                    message = f"there are {self.limits.streams} streams, which is the limit"
                    raise Refused(message, "too-many-streams", 503)
            self._make_room()
            session = self.storage.load(name)
            with self._lock:
                self._resident[name] = session
                self._known.add(name)

    @contextmanager
    def using(self, name: str, *, make: bool = False) -> Iterator[StreamSession]:
        """A session, loaded if necessary."""
        while (session := self.acquire(name)) is None:
            self.load(name, make=make)
        try:
            yield session
        finally:
            self.release(session)

    def _make_room(self) -> None:
        """Move sessions without users to disk until there is room for another one."""
        while True:
            with self._lock:
                if len(self._resident) < self.limits.resident:
                    return
                idle = next((one for one in self._resident.values() if not one.users), None)
            if idle is None:
                message = f"{self.limits.resident} streams are in use, which is the limit in memory: try again later"
                raise Refused(message, "overloaded", 503)
            if idle.dirty and not self.storage.save(idle):
                problem = self.storage.problems.get("states", "the disk is full")
                raise Refused(f"there is no room for another stream: {problem}", "disk-full", 507)
            with self._lock:
                if not idle.users and not idle.dirty:
                    self._resident.pop(idle.name, None)


def check_name(name: str) -> None:
    """Refuse names that cannot be the name of a folder everywhere."""
    if _NAME.fullmatch(name) is None:
        allowed = "up to 48 lower-case letters, digits, - and _, the first a letter or a digit"
        raise Refused(f"the name of a stream has {allowed}; got {visible(name)[:60]!r}", "stream-name")
