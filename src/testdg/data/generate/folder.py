"""What is to be made, and the folder it is made in: its manifest tells what is complete."""

import json
from collections.abc import Callable, Iterator, Sequence, Sized
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from testdg.data.benchmarks.base import check_once, fingerprint
from testdg.data.corruptions import EXTRA, SEVERITIES, STANDARD_ORDER, FrostTextures, ParameterSet
from testdg.data.corruptions.parameters import check_name, check_severity
from testdg.data.manifest import MANIFEST, read_manifest
from testdg.errors import UserError
from testdg.files import locked, replace_text, writing
from testdg.version import __version__

Images = TypeVar("Images", bound=Sized)
ALL = (*STANDARD_ORDER, *EXTRA)
Tell = Callable[[str, int, int], None]
"""Hears the corruption at work, the images made by this command so far, and how many it will make."""


@dataclass(frozen=True)
class CorruptOptions:
    """Which corruptions at which severities, and how they are made."""

    corruptions: Sequence[str] = ALL
    severities: Sequence[int] = SEVERITIES
    seed: int = 0
    jobs: int = 1

    def __post_init__(self) -> None:
        for name in self.corruptions:
            check_name(name)
        for severity in self.severities:
            check_severity(severity)
        check_once("corruptions", self.corruptions)
        check_once("severities", self.severities)
        if self.jobs < 1:
            raise UserError(f"jobs must be at least 1; got {self.jobs}")

    def describe(
        self, source: str, images: int, frost: FrostTextures | None, parameters: ParameterSet
    ) -> dict[str, Any]:
        """Everything that the images depend on, for the manifest; `source` identifies the clean ones."""
        return {
            "seed": self.seed,
            "frost": "procedural" if frost is None else f"{frost.description} ({fingerprint(frost.textures)})",
            "source_fingerprint": source,
            "images": images,
            "severities": sorted(self.severities),
            "corruptions": [],
            "parameters": parameters.name,
        }


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
    """The file that tells which corruptions of a folder are complete, and what they were made from.

    It is begun, or gone on with where it is there; anything made from other values is refused.
    """

    def __init__(self, folder: Path, about: dict[str, Any]) -> None:
        self.path = folder / MANIFEST
        self.about: dict[str, Any] = {"generator": "testdg", "version": __version__, **about}
        begun = read_manifest(folder)
        for key, value in self.about.items():
            if key != "corruptions" and begun is not None and begun.get(key) != value:
                remedy = "choose another --out, or delete the folder"
                raise UserError(f"{folder} was made with {key} {begun.get(key)}, not {value}: {remedy}")
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
        yield Manifest(folder, about)
