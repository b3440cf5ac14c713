"""Folders that can be resumed: configuration, log, state and result, safe against a kill at any moment.

The invariant: the log on disk contains every batch that the saved state has learnt from, and perhaps some more. Three
rules ensure it:

1. Log entries are appended and forced to disk (fsync) before a state that includes their batches is saved.
2. The state and its number of batches are written under a temporary name and renamed, so they always fit together.
3. When a run resumes, log entries after that number are cut off, and their batches run again.

The folder is locked, so that it has one writer at a time; the system releases the lock when the process ends.
"""

from __future__ import annotations

import hashlib
import json
import os
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import tomli_w

from testdg.core.online import OnlineModel, load_online
from testdg.core.state import OLD, VALUES, tidy
from testdg.errors import UserError
from testdg.files import FRESH, Lock, checksum, locked, replace_text, writing
from testdg.models import VisionModel
from testdg.runs.events import Entry, read_entry
from testdg.runs.result import Result
from testdg.runs.session import Session

CONFIG, STATE, EVENTS_FILE, RESULT = "config.toml", "state", "events.jsonl", "result.json"
CHECKSUM, EVENTS = "checksum", "events"
"""Keys of `result.json` next to the result: a checksum over all of it, and one over the log."""
_UNUSABLE = (OSError, ValueError, KeyError, TypeError, AttributeError, RuntimeError, RecursionError)
"""What reading a damaged file raises."""


def damaged(folder: Path, name: str, reason: object) -> UserError:
    """Make the error for a file of a folder that cannot be used."""
    message = f"{folder / name} is damaged ({reason}); delete the folder {folder} to start again"
    return UserError(message, code="damaged-folder")


@contextmanager
def reading(folder: Path, name: str) -> Iterator[None]:
    """Convert exceptions from reading a damaged file into the error for it; a `UserError` is passed on."""
    try:
        yield
    except UserError:
        raise
    except _UNUSABLE as error:
        raise damaged(folder, name, error) from error


class Folder:
    """A folder with a configuration and the saved state of a session; one process at a time writes in it."""

    def __init__(
        self,
        path: Path,
        config: Mapping[str, Any],
        writer: str = "run",
        remedy: str = "wait for it, or choose another --out",
    ) -> None:
        self.path, self.config = path, dict(config)
        self._busy = f"{path} is being written by another {writer}: {remedy}"
        self._lock: Lock | None = None

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Create and lock the folder, and delete temporary files that killed processes have left."""
        with writing(self.path):
            self.path.mkdir(parents=True, exist_ok=True)
        with locked(self.path / ".lock", self._busy) as self._lock:
            for path in self.path.glob(f".*{FRESH}"):
                with suppress(OSError):
                    path.unlink()
            yield

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Write to the folder, provided that it is still the locked one; a deleted folder is not created again."""
        if self._lock is not None and not self._lock.valid:
            message = f"{self.path} was deleted or replaced while it was being written: start the command again"
            raise UserError(message, code="folder-replaced")
        with writing(self.path):
            yield

    @contextmanager
    def open(self) -> Iterator[None]:
        """Lock the folder, and check that it belongs to the same configuration or is new."""
        with self.lock():
            self.check_config()
            if not (self.path / CONFIG).exists():
                with self.writing():
                    replace_text(self.path / CONFIG, tomli_w.dumps(self.config))
            yield

    def check_config(self) -> None:
        if (self.path / CONFIG).exists() and read_config(self.path) != self.config:
            raise damaged(self.path, CONFIG, "it belongs to another configuration")

    def saved_state(self) -> Path | None:
        """The folder of the saved state, or None. What a process left that was killed while saving is cleaned up."""
        state = self.path / STATE
        if not state.exists() and not state.with_name(STATE + OLD).exists():
            return None
        with writing(self.path):
            tidy(state)
        return state

    def restore_state(self, session: Session) -> dict[str, Any] | None:
        """Load the saved state into a session; returns its note, None without a state."""
        try:
            state = self.saved_state()
            return None if state is None else session.restore(state)
        except _UNUSABLE as error:
            raise damaged(self.path, STATE, error) from error


class Resumed(NamedTuple):
    """Where a run resumes: seconds that it took so far, and the log entries of the batches that are done."""

    seconds: float
    entries: list[Entry]


class RunFolder(Folder):
    """The folder of one run: `config.toml`, `events.jsonl`, `state/`, `result.json`; see docs/run-folders.md."""

    def __init__(self, path: Path, config: Mapping[str, Any]) -> None:
        super().__init__(path, config)
        self._digest = hashlib.blake2b(digest_size=16)  # of the log so far

    def result(self) -> Result | None:
        """Read the result of a complete run; None for an incomplete one."""
        if not (self.path / RESULT).exists():
            return None
        self.check_config()
        return read_result(self.path)

    def resume(self, session: Session) -> Resumed:
        """Load the saved state into a session, and cut off the log entries after it.

        The state contains a checksum of the log up to its last batch, so that a log of another run is refused.
        """
        note, lines = self.restore_state(session), _lines(self.path)
        done, seconds = 0, 0.0
        if note is not None:
            with reading(self.path, STATE):
                done, seconds, expected = int(note["batches"]), float(note["seconds"]), str(note[EVENTS])
                if note["run"] != self.path.name:
                    raise ValueError(f"it belongs to the run {note['run']}")
            if checksum(b"".join(lines[:done])) != expected:
                raise damaged(self.path, EVENTS_FILE, f"it does not fit the state after {done} batches")
        data = b"".join(lines[:done])
        with self.writing(), (self.path / EVENTS_FILE).open("ab") as file:
            file.truncate(len(data))
        self._digest.update(data)
        return Resumed(seconds, _parse(self.path, lines[:done]))

    def append(self, entries: Sequence[Entry]) -> None:
        """Append log entries and force them to disk."""
        data = "".join(json.dumps(entry, allow_nan=False) + "\n" for entry in entries).encode()
        with self.writing(), (self.path / EVENTS_FILE).open("ab") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        self._digest.update(data)

    def save(self, online: OnlineModel, batches: int, seconds: float) -> None:
        """Save the state after some batches, whose entries are all in the log."""
        about = {"run": self.path.name, EVENTS: self._digest.hexdigest()}
        with self.writing():
            online.save(self.path / STATE, {"batches": batches, "seconds": seconds, **about})

    def finish(self, result: Result) -> None:
        """Write the result; the run is complete."""
        values = {**result.to_dict(), EVENTS: self._digest.hexdigest()}
        with self.writing():
            text = json.dumps({**values, CHECKSUM: checksum(values)}, indent=2) + "\n"
            replace_text(self.path / RESULT, text)


def run_name(config: Mapping[str, Any]) -> str:
    """Name a run after its benchmark, its method and a hash of everything else that its numbers depend on."""
    return f"{config['protocol']['benchmark']}-{config['method']['name']}-{checksum(dict(config), 5)}"


def read_result(folder: str | Path) -> Result:
    place = Path(folder)
    values = _read_values(place)
    with reading(place, RESULT):
        config = read_config(place)
        if any(values[part] != config[part] for part in ("protocol", "method")):
            raise ValueError(f"it belongs to another configuration than the {CONFIG} next to it")
        return Result.from_dict(values, place)


def read_events(folder: Path) -> list[Entry]:
    """Read the log of a complete run, one entry per batch."""
    if not (lines := _lines(folder)):
        message = f"{folder / EVENTS_FILE} is missing or empty: delete the folder and run again"
        raise UserError(message, code="no-events")
    entries = _parse(folder, lines)
    if checksum(b"".join(lines)) != _read_values(folder)[EVENTS]:
        raise damaged(folder, EVENTS_FILE, "its checksum does not fit")
    return entries


def load_adapted(folder: Path, model: VisionModel) -> OnlineModel:
    """Load the adapted model at the end of a complete run; `model` is the source model of that run."""
    state = folder / STATE
    if not state.exists():
        message = f"{folder} has no state: delete the run folder, and run again"
        raise UserError(message, code="no-state")
    with reading(folder, STATE):
        note = json.loads((state / VALUES).read_text(encoding="utf-8"))["note"]
        if note["run"] != folder.name or note[EVENTS] != _read_values(folder)[EVENTS]:
            raise ValueError("it does not belong to the result next to it")
    return load_online(state, model)


def read_config(folder: Path) -> dict[str, Any]:
    with reading(folder, CONFIG):
        return tomllib.loads((folder / CONFIG).read_text(encoding="utf-8"))


def _lines(folder: Path) -> list[bytes]:
    """The lines of the log with their line ends; an empty list without a log."""
    path = folder / EVENTS_FILE
    return path.read_bytes().splitlines(keepends=True) if path.exists() else []


def _parse(folder: Path, lines: Sequence[bytes]) -> list[Entry]:
    with reading(folder, EVENTS_FILE):
        return [read_entry(number, line) for number, line in enumerate(lines)]


def _read_values(folder: Path) -> dict[str, Any]:
    """Read `result.json` and verify its checksum, which is not part of the returned values."""
    path = folder / RESULT
    if not path.exists():
        message = f"{folder} has no {RESULT}: it is not a run folder, or its run is not complete"
        raise UserError(message, code="no-result")
    with reading(folder, RESULT):
        values: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        if values.pop(CHECKSUM, None) != checksum(values) or EVENTS not in values:
            raise ValueError("its checksum does not fit")
        return values
