"""Run folders: configuration, events, state and result of one run, safe against being killed at any moment."""

import json
import os
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import tomli_w

from testdg.core.online import load_online
from testdg.core.state import read_folder, tidy
from testdg.errors import UserError
from testdg.files import OneWriter, checksum, replace_text, writing
from testdg.methods import Adapter
from testdg.models import VisionModel
from testdg.runs.events import Event, read_event
from testdg.runs.result import Result

CHECKSUM, EVENTS = "checksum", "events"
"""What `result.json` has beside the result: a checksum over all of it, and one over the events."""


def run_name(config: dict[str, Any]) -> str:
    """Name a run after its benchmark, its method and everything else that its number depends on."""
    return f"{config['protocol']['benchmark']}-{config['method']['name']}-{checksum(config, 5)}"


class RunFolder(OneWriter):
    """One run on disk. `config` holds plain values only; see docs/run-folders.md."""

    def __init__(self, path: Path, config: dict[str, Any]) -> None:
        super().__init__(path, "run", "wait for it, or choose another --out")
        self.path, self.config = path, config
        self.events_path = path / "events.jsonl"

    @contextmanager
    def held(self) -> Iterator[None]:
        """Make the folder with its configuration, or check the one that is there, and keep other runs out of it."""
        with self.alone():
            if (self.path / "config.toml").exists():
                self._check_config()
            else:
                with self.writing():
                    replace_text(self.path / "config.toml", tomli_w.dumps(self.config))
            yield

    def result(self) -> Result | None:
        """Read the result of a complete run; None where the run is not complete."""
        if not (self.path / "result.json").exists():
            return None
        self._check_config()
        return read_result(self.path)

    def resume(self, adapter: Adapter) -> tuple[int, float]:
        """Bring the adapter to the last saved state, cut later events, and tell batches and seconds done."""
        state, done, seconds = self.path / "state", 0, 0.0
        if state.exists() or state.with_name("state.old").exists():
            try:
                with writing(self.path):
                    tidy(state)
                tensors, about = read_folder(state)
                done, seconds = self._check_note(about["note"])
                adapter.check_origin(about)
                adapter.load_state(tensors, about["values"])
            except (ValueError, KeyError, TypeError, AttributeError, RuntimeError) as error:
                raise self._damaged("state", error) from error
        kept = self._lines()[:done]
        with self.writing(), self.events_path.open("ab") as file:
            file.truncate(sum(len(line) for line in kept))
        return done, seconds

    def _check_note(self, note: Mapping[str, Any]) -> tuple[int, float]:
        """Batches and seconds behind a saved state of this run, whose events must be there."""
        if note["run"] != self.path.name:
            raise ValueError(f"it belongs to the run {note['run']}")
        done = int(note["batches"])
        if self._events_checksum(done) != note["events"]:
            raise self._damaged(self.events_path.name, f"it does not fit the state after {done} batches")
        return done, float(note["seconds"])

    def _lines(self) -> list[bytes]:
        """The lines of all events, ends included."""
        return self.events_path.read_bytes().splitlines(keepends=True) if self.events_path.exists() else []

    def _events_checksum(self, batches: int | None = None) -> str:
        """The checksum of the events of some batches, or of all."""
        return checksum(b"".join(self._lines()[:batches]))

    def append(self, events: list[Event]) -> None:
        """Add events at the end and force them to disk."""
        with self.writing(), self.events_path.open("a", encoding="utf-8", newline="\n") as file:
            file.writelines(json.dumps(event, allow_nan=False) + "\n" for event in events)
            file.flush()
            os.fsync(file.fileno())

    def save(self, adapter: Adapter, batches: int, seconds: float) -> None:
        """Save the adapter together with the number of batches behind it, in one step."""
        with self.writing():
            about = {"run": self.path.name, "events": self._events_checksum(batches)}
            adapter.save(self.path / "state", note={"batches": batches, "seconds": seconds, **about})

    def finish(self, result: Result) -> None:
        """Write the result; the run is complete."""
        values = {**result.to_dict(), EVENTS: self._events_checksum()}
        with self.writing():
            text = json.dumps({**values, CHECKSUM: checksum(values)}, indent=2) + "\n"
            replace_text(self.path / "result.json", text)

    def events(self, batches: int) -> list[Event]:
        """Read the events of as many batches as are behind the run."""
        try:
            events = [read_event(number, line) for number, line in enumerate(self._lines())]
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            raise self._damaged(self.events_path.name, error) from error
        if len(events) != batches:
            raise self._damaged(self.events_path.name, f"{len(events)} events for {batches} batches")
        if (self.path / "result.json").exists():
            expected = _read_values(self.path).get(EVENTS)  # old results have no such checksum
            if expected is not None and self._events_checksum() != expected:
                raise self._damaged(self.events_path.name, "its checksum does not fit")
        return events

    def _check_config(self) -> None:
        if _read_config(self.path) != self.config:
            raise self._damaged("config.toml", "it belongs to another configuration")

    def _damaged(self, name: str, reason: object) -> UserError:
        return damaged(self.path, name, reason)


def damaged(folder: Path, name: str, reason: object) -> UserError:
    """Make the error for a file of a run folder that cannot be used."""
    return UserError(f"{folder / name} is damaged ({reason}); delete the folder {folder} to start again")


def read_result(folder: str | Path) -> Result:
    """Read the result of a run folder."""
    place = Path(folder)
    values = _read_values(place)
    try:
        _check_owner(place, values)
        return Result.from_dict(values, place)
    except UserError:
        raise
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise damaged(place, "result.json", error) from error


def read_events(folder: Path) -> list[Event]:
    """Read what a complete run tells of every batch."""
    path = folder / "events.jsonl"
    lines = path.read_bytes().count(b"\n") if path.exists() else 0
    if not lines:
        raise UserError(f"{path} is missing or empty: delete the folder and run again")
    return RunFolder(folder, {}).events(lines)


def load_adapted(folder: Path, model: VisionModel) -> Adapter:
    """Bring back the adapter as a complete run left it, around the model that the run began with."""
    path = folder / "state" / "state.json"
    try:
        about = json.loads(path.read_text(encoding="utf-8"))
        note = about["note"]
        mine = note["run"] == folder.name and note["events"] == _read_values(folder)[EVENTS]
    except UserError:
        raise
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise damaged(folder, "state", error) from error
    if not mine:
        raise damaged(folder, "state", "it does not belong to the result beside it")
    state = folder / "state"
    return load_online(state, model).adapter


def _read_values(folder: Path) -> dict[str, Any]:
    """What `result.json` holds, after a look at its checksum; one from before there were checksums has none."""
    path = folder / "result.json"
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(values, dict):
            raise TypeError(f"it holds a {type(values).__name__}")
    except FileNotFoundError as error:
        raise UserError(f"{folder} holds no result.json: it is no run folder, or its run is not complete") from error
    except (OSError, ValueError, TypeError, RecursionError) as error:
        raise damaged(folder, path.name, error) from error
    found = values.pop(CHECKSUM, None)
    if (found is not None or EVENTS in values) and found != checksum(values):
        raise damaged(folder, path.name, "its checksum does not fit")
    return values


def _check_owner(folder: Path, values: Mapping[str, Any]) -> None:
    """Refuse a result that does not belong to the configuration beside it; an old one may have said less."""
    old = EVENTS not in values
    if old and not (folder / "config.toml").exists():
        return
    config = _read_config(folder)
    for part in ("protocol", "method"):
        mine, theirs = values[part], config[part]
        if mine != ({key: theirs.get(key) for key in mine} if old else theirs):
            raise damaged(folder, "result.json", "it belongs to another configuration than config.toml beside it")


def _read_config(folder: Path) -> dict[str, Any]:
    path = folder / "config.toml"
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise damaged(folder, path.name, error) from error
