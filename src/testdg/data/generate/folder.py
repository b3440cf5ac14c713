"""The folder of a set while it is made: its manifest, which tells what is complete, and the count of images."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sized
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from testdg.data.generate.options import ALL
from testdg.data.manifest import MANIFEST, read_manifest
from testdg.errors import UserError
from testdg.files import locked, replace_text, writing
from testdg.version import __version__

Images = TypeVar("Images", bound=Sized)
Tell = Callable[[str, int, int], None]
"""Hears the corruption at work, the images made by this command so far, and how many it will make."""


class Count:
    """Counts images while they are made, and tells."""

    def __init__(self, tell: Tell, total: int) -> None:
        self.tell, self.done, self.total = tell, 0, total

    def passed(self, name: str, images: Images) -> Images:
        """Count some images of a corruption and hand them on."""
        self.done += len(images)
        self.tell(name, self.done, self.total)
        return images


class Manifest:
    """The file that tells which corruptions of a folder are complete, and what they were made from."""

    def __init__(self, folder: Path, about: dict[str, Any]) -> None:
        self.path = folder / MANIFEST
        self.about: dict[str, Any] = {"generator": "testdg", "version": __version__, **about}

    def open(self) -> None:
        """Begin, or go on with what is there; anything made from other values is refused."""
        begun = read_manifest(self.path.parent)
        for key, value in self.about.items():
            if key != "corruptions" and begun is not None and begun.get(key) != value:
                remedy = "choose another --out, or delete the folder"
                raise UserError(f"{self.path.parent} was made with {key} {begun.get(key)}, not {value}: {remedy}")
        self.about["corruptions"] = [] if begun is None else list(begun.get("corruptions", []))
        self._write()

    def add(self, name: str) -> None:
        """Say that a corruption is complete."""
        if name not in self.about["corruptions"]:
            self.about["corruptions"] = [known for known in ALL if known in (name, *self.about["corruptions"])]
            self._write()

    def _write(self) -> None:
        replace_text(self.path, json.dumps(self.about, indent=2) + "\n")


@contextmanager
def claimed(folder: Path, about: dict[str, Any]) -> Iterator[Manifest]:
    """Hold a folder that is new, or that the same command began; failures to write become sentences."""
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        names = {path.name for path in folder.iterdir()} - {".lock", MANIFEST + ".new"}
    if names and MANIFEST not in names:
        raise UserError(
            f"{folder} holds {min(names)} and no {MANIFEST}, so something else made it: choose another --out"
        )
    busy = f"{folder} is being written by another command: wait for it, or choose another --out"
    with locked(folder / ".lock", busy), writing(folder):
        manifest = Manifest(folder, about)
        manifest.open()
        yield manifest
