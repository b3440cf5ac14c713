"""The source model of a cell as bytes: it is sent along, so that every machine adapts exactly the same one."""

import hashlib
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path

from testdg.experiments.engine import load_setup
from testdg.experiments.grid import Cell, Setup
from testdg.training.cache import cache_folder


@dataclass(frozen=True)
class SentModel:
    """A model file, or a folder of files, by the name that it had where it was packed."""

    name: str
    files: dict[str, bytes]
    """Contents by their path in the folder; the path is empty for a single file."""

    @property
    def digest(self) -> str:
        """What the contents are known by."""
        found = hashlib.blake2b(digest_size=8)
        for path, content in sorted(self.files.items()):
            found.update(f"{path} {len(content)} ".encode() + content)
        return found.hexdigest()

    def unpack(self) -> Path:
        """Write the files on this machine, once, and tell where."""
        parent = cache_folder() / "sent-models"
        home = parent / self.digest
        if not home.exists():
            parent.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(prefix="new-", dir=parent) as place:
                self._write(Path(place) / "model" / self.name)
                if not home.exists():
                    (Path(place) / "model").rename(home)
        return home / self.name

    def _write(self, target: Path) -> None:
        for path, content in self.files.items():
            file = target / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(content)


def pack_model(setup: Setup) -> SentModel | None:
    """Pack the model of a cell; None where every machine fetches it by itself, from the hub or from timm."""
    source = _find_model(setup)
    if not source.exists():
        return None
    if source.is_file():
        return SentModel(source.name, {"": source.read_bytes()})
    files = (path for path in source.rglob("*") if path.is_file())
    return SentModel(source.name, {path.relative_to(source).as_posix(): path.read_bytes() for path in files})


def _find_model(setup: Setup) -> Path:
    """Where the model lies; that of an embedded benchmark was trained by `prepare`, or is now."""
    if setup.model is None:
        return cache_folder() / load_setup(setup, "cpu")[1].name
    return Path(setup.model).absolute()


def unpacked(cell: Cell, model: SentModel | None) -> Cell:
    """The cell with the model that came along."""
    return cell if model is None else replace(cell, model=str(model.unpack()))
