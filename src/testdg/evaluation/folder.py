"""Run folders: configuration, events, state and result of one run, safe against being killed at any moment."""

from __future__ import annotations

import hashlib
import json
import os
import tomllib
from pathlib import Path
from typing import Any

import tomli_w

from testdg.errors import UserError
from testdg.evaluation.loop import Event
from testdg.evaluation.result import Result
from testdg.files import replace_text, writing
from testdg.methods import Adapter
from testdg.methods.state import read_folder


def run_name(config: dict[str, Any]) -> str:
    """Name a run after its benchmark, its method and everything else that its number depends on."""
    text = json.dumps(config, sort_keys=True)
    digest = hashlib.blake2b(text.encode(), digest_size=5).hexdigest()
    return f"{config['protocol']['benchmark']}-{config['method']['name']}-{digest}"


class RunFolder:
    """One run on disk. `config` holds plain values only; see docs/run-folders.md."""

    def __init__(self, path: Path, config: dict[str, Any]) -> None:
        self.path, self.config = path, config
        self.events_path = path / "events.jsonl"

    def create(self) -> None:
        """Make the folder with its configuration, or check the one that is there."""
        with writing(self.path):
            self.path.mkdir(parents=True, exist_ok=True)
        if (self.path / "config.toml").exists():
            self._check_config()
            return
        with writing(self.path):
            replace_text(self.path / "config.toml", tomli_w.dumps(self.config))

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
                tensors, about = read_folder(state)
                done, seconds = int(about["note"]["batches"]), float(about["note"]["seconds"])
                if done < 0:
                    raise ValueError(f"{done} batches")
                adapter.load_state(tensors, about["values"])
            except (ValueError, KeyError, TypeError, AttributeError, RuntimeError) as error:
                raise self._damaged("state", error) from error
        self._cut(done)
        return done, seconds

    def append(self, events: list[Event]) -> None:
        """Add events at the end and force them to disk."""
        with writing(self.path), self.events_path.open("a", encoding="utf-8", newline="\n") as file:
            file.writelines(json.dumps(event, allow_nan=False) + "\n" for event in events)
            file.flush()
            os.fsync(file.fileno())

    def save(self, adapter: Adapter, batches: int, seconds: float) -> None:
        """Save the adapter together with the number of batches behind it, in one step."""
        with writing(self.path):
            adapter.save(self.path / "state", note={"batches": batches, "seconds": seconds})

    def finish(self, result: Result) -> None:
        """Write the result; the run is complete."""
        with writing(self.path):
            replace_text(self.path / "result.json", json.dumps(result.to_dict(), indent=2) + "\n")

    def events(self, batches: int) -> list[Event]:
        """Read the events of as many batches as are behind the run."""
        try:
            lines = self.events_path.read_bytes().splitlines() if self.events_path.exists() else []
            events = [_read_event(number, line) for number, line in enumerate(lines)]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise self._damaged(self.events_path.name, error) from error
        if len(events) != batches:
            raise self._damaged(self.events_path.name, f"{len(events)} events for {batches} batches")
        return events

    def _cut(self, batches: int) -> None:
        """Keep the first events, one line each."""
        lines = self.events_path.read_bytes().splitlines(keepends=True) if self.events_path.exists() else []
        if len(lines) < batches:
            raise self._damaged(self.events_path.name, f"{len(lines)} events for {batches} batches")
        with writing(self.path), self.events_path.open("ab") as file:
            file.truncate(sum(len(line) for line in lines[:batches]))

    def _check_config(self) -> None:
        path = self.path / "config.toml"
        try:
            found = tomllib.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise self._damaged(path.name, error) from error
        if found != self.config:
            raise self._damaged(path.name, "it belongs to another configuration")

    def _damaged(self, name: str, reason: object) -> UserError:
        return damaged(self.path, name, reason)


def damaged(folder: Path, name: str, reason: object) -> UserError:
    """Make the error for a file of a run folder that cannot be used."""
    return UserError(f"{folder / name} is damaged ({reason}); delete the folder {folder} to start again")


def read_result(folder: str | Path) -> Result:
    """Read the result of a run folder."""
    path = Path(folder) / "result.json"
    try:
        return Result.from_dict(json.loads(path.read_text(encoding="utf-8")), path.parent)
    except FileNotFoundError as error:
        raise UserError(f"{folder} holds no result.json: it is no run folder, or its run is not complete") from error
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise damaged(path.parent, path.name, error) from error


def _read_event(number: int, line: bytes) -> Event:
    event: Event = json.loads(line)
    if event["batch"] != number:
        raise ValueError(f"line {number + 1} is batch {event['batch']}")
    for key, kind in {"domain": str, "phase": str, "images": int, "errors": int, "parts": list}.items():
        if not isinstance(event[key], kind):
            raise TypeError(f"line {number + 1}: {key} is {event[key]!r}")
    return event
