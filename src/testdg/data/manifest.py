"""Corrupted sets that `testdg corrupt` makes: what is asked for, and the manifest that tells what is complete."""

import json
from collections.abc import Callable, Iterator, Sequence, Sized
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from testdg.bounds import read_json
from testdg.data.benchmarks.base import check_once, fingerprint
from testdg.data.corruptions import EXTRA, SEVERITIES, STANDARD_ORDER, FrostTextures, ParameterSet
from testdg.data.corruptions.parameters import check_name, check_severity
from testdg.errors import UserError
from testdg.files import locked, replace_text, writing
from testdg.version import __version__

MANIFEST = "testdg-corrupt.json"
MOST_IMAGES = 100_000_000
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


def read_manifest(folder: Path) -> dict[str, Any] | None:
    """Read the manifest of a folder; None where there is none."""
    path = folder / MANIFEST
    if not path.exists():
        return None
    try:
        about = read_json(path)
        _check_lists(about)
        return {**about, "version": str(about["version"]), "seed": int(about["seed"]), "frost": str(about["frost"])}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(f"{path} is damaged ({type(error).__name__} {error}): make the set again") from error


def _check_lists(about: Any) -> None:
    """Refuse what those who count images, severities and corruptions could not count."""
    if not isinstance(about, dict):
        raise TypeError(f"it holds a {type(about).__name__}")
    images, severities = about.get("images", 1), about.get("severities", [1])
    if type(images) is not int or not 0 < images <= MOST_IMAGES:
        raise ValueError(f"images must be 1 to {MOST_IMAGES}")
    if not isinstance(severities, list) or not all(type(level) is int and 1 <= level <= 5 for level in severities):
        raise ValueError("severities must be a list of 1 to 5")
    if not all(isinstance(name, str) for name in about.get("corruptions", [])):
        raise ValueError("corruptions must be a list of names")


def stored_origin(folder: Path, otherwise: str) -> str:
    """Where stored corruptions come from, in words: what the manifest says, if there is one."""
    about = read_manifest(folder)
    if about is None:
        return otherwise
    return f"generated by testdg {about['version']}, seed {about['seed']}, frost {about['frost']}"
