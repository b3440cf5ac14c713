"""What a server keeps on disk: a folder for every stream, a log of actions, and a sign of life.

OUT/server.json             the model, the method and the settings that all states belong to
OUT/alive.json              what every stream had seen a second ago, and whether the server ended in order
OUT/actions.jsonl           who did what to a model, when and why
OUT/streams/NAME/state      the adapter, replaced in one step
OUT/streams/NAME/snapshots  states that somebody asked to keep
OUT/streams/NAME/exports    adapted models
"""

import json
import shutil
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from testdg.bounds import read_json
from testdg.core.state import TENSORS, VALUES, tidy
from testdg.errors import UserError
from testdg.files import replace_text, writing
from testdg.runs.setup import put_back
from testdg.serve.factory import Factory
from testdg.serve.limits import Refused
from testdg.serve.stream import Stream

_MOST_LOG = 8 << 20  # bytes of a log; the one before it is kept


class Store:
    """The folder of a server. What cannot be written is noted in `problems`, and tried again later."""

    def __init__(self, folder: Path, factory: Factory) -> None:
        self.folder, self.factory = folder, factory
        self.problems: dict[str, str] = {}
        """What cannot be written now, in words."""
        self._log = threading.Lock()
        with writing(folder):
            (folder / "streams").mkdir(parents=True, exist_ok=True)
            for path in folder.glob("streams/*"):
                tidy(path / "state")
        self._check_owner()
        self.before = self._last_life()

    def _check_owner(self) -> None:
        """Refuse the folder of another model, method or setting."""
        about = json.loads(json.dumps(self.factory.describe()))
        path = self.folder / "server.json"
        if path.exists():
            try:
                found = read_json(path)
            except (OSError, ValueError) as error:
                raise UserError(f"{path} cannot be read: {error}; choose another folder with --out") from error
            if found != about:
                other = next((key for key in about if found.get(key) != about[key]), "something else")
                raise UserError(f"{self.folder} belongs to a server with another {other}: choose another --out")
        with writing(self.folder):
            replace_text(path, json.dumps(about, indent=1) + "\n")

    def _last_life(self) -> dict[str, Any]:
        """What the server before this one had seen when it was last heard of; nothing where it ended in order."""
        with suppress(OSError, ValueError, AttributeError):
            about = read_json(self.folder / "alive.json")
            return {} if about.get("ended") else dict(about["streams"])
        return {}

    def path(self, name: str) -> Path:
        """The folder of a stream."""
        return self.folder / "streams" / name

    def known(self) -> list[str]:
        """Streams that have a saved state."""
        return sorted(path.parent.name for path in self.folder.glob("streams/*/state") if path.is_dir())

    # States

    def save(self, stream: Stream) -> bool:
        """Write a stream; where that fails, say so in `problems`, and go on in memory."""
        folder = self.path(stream.name) / "state"
        stream.tried = time.monotonic()
        try:
            with stream.lock:
                note, version = stream.note(), stream.version
                stream.adapter.save(folder, note)
                size = sum((folder / name).stat().st_size for name in (TENSORS, VALUES))
                seen = {"time": note["time"], "pictures": note["counts"]["pictures"]}
                stream.saved = replace(stream.saved, **seen, version=version, bytes=size)
        except (UserError, OSError) as error:
            self.problems["states"] = f"states are not being saved: {_reason(error)}"
            return False
        self.problems.pop("states", None)
        return True

    def load(self, name: str) -> Stream:
        """Bring a stream back from disk, or begin it; one that is damaged is put aside and begins anew."""
        folder, adapter = self.path(name) / "state", self.factory.fresh()
        if not folder.is_dir():
            return self._told_lost(Stream(name, adapter, self.factory))
        try:
            note = put_back(adapter, folder)
            stream = Stream(name, adapter, self.factory)
            stream.load_note(note)
        except (UserError, KeyError, TypeError) as error:
            return self._damaged(name, error)
        return self._told_lost(stream)

    def _damaged(self, name: str, error: Exception) -> Stream:
        aside = self.path(name) / f"damaged-{int(time.time())}"
        (self.path(name) / "state").rename(aside)
        stream = Stream(name, self.factory.fresh(), self.factory)
        stream.saved.lost = f"the saved state was damaged, and lies in {aside.name}: the stream began anew"
        stream.timeline.mark("note", f"{stream.saved.lost} ({error})")
        return stream

    def _told_lost(self, stream: Stream) -> Stream:
        """Say what a kill of the last server has cost a stream."""
        seen = self.before.pop(stream.name, None)
        if seen is None:
            return stream
        learnt = seen["learnt"] - stream.counts.learnt
        if learnt > 0:
            saved = stream.saved.time
            since = "its beginning" if saved is None else time.strftime("%H:%M:%S", time.localtime(saved))
            stream.saved.lost = f"the server was killed: what was learnt from {learnt} pictures after {since} is lost"
            stream.timeline.mark("note", stream.saved.lost)
        return stream

    # Life

    def sign(self, streams: Iterable[Stream], *, ended: bool = False) -> None:
        """Note what every stream has seen, so that the next server can say what a kill has cost."""
        seen = {one.name: {"pictures": one.counts.pictures, "learnt": one.counts.learnt} for one in streams}
        text = json.dumps({"time": time.time(), "ended": ended, "streams": {**self.before, **seen}})
        try:
            fresh = self.folder / ".alive.json"  # not forced to disk: a power cut costs the sentence, not the state
            fresh.write_text(text, encoding="utf-8")
            fresh.replace(self.folder / "alive.json")
            self.problems.pop("life", None)
        except OSError as error:
            self.problems["life"] = f"nothing can be written: {error.strerror or error}"

    def log(self, record: dict[str, Any]) -> None:
        """Append an action to the log."""
        path = self.folder / "actions.jsonl"
        try:
            with self._log:
                if path.exists() and path.stat().st_size > _MOST_LOG:
                    path.replace(path.with_suffix(".old.jsonl"))
                with path.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(record) + "\n")
            self.problems.pop("actions", None)
        except OSError as error:
            self.problems["actions"] = f"actions are not being logged: {error.strerror or error}"

    # Snapshots and exports

    @contextmanager
    def place(self, name: str, kind: str, most: int) -> Iterator[Path]:
        """A numbered place for a new snapshot or export; once it is written, only the last `most` are kept.

        What cannot be written leaves nothing, and is a failure of the request.
        """
        numbers = self.numbers(name, kind)
        folder = self.path(name) / kind / str(numbers[-1] + 1 if numbers else 1)
        try:
            yield folder
        except BaseException as error:
            shutil.rmtree(folder, ignore_errors=True)
            if isinstance(error, Refused) or not isinstance(error, UserError | OSError):
                raise
            raise Refused(f"it could not be written: {getattr(error, 'strerror', None) or error}", 409) from error
        for number in numbers[: max(0, len(numbers) - most + 1)]:
            shutil.rmtree(self.path(name) / kind / str(number), ignore_errors=True)

    def numbers(self, name: str, kind: str) -> list[int]:
        """The snapshots or exports that there are."""
        found = (path.name for path in (self.path(name) / kind).glob("*") if path.is_dir())
        return sorted(int(number) for number in found if number.isdecimal())


def _reason(error: UserError | OSError) -> str:
    """The reason without the path, which is nobody's business who may only ask for the health."""
    cause = error if isinstance(error, OSError) else error.__cause__
    return str(getattr(cause, "strerror", None) or "the disk cannot be written")
