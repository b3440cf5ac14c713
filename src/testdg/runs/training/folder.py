"""The folder of a trained model: it appears when it is complete, and its training is safe against being killed."""

import json
import os
import shutil
from pathlib import Path
from typing import Any

from torch import Tensor

from testdg.core.state import read_folder, write_folder
from testdg.errors import UserError
from testdg.files import checksum, file_checksum, replace_text, sync_folder
from testdg.models import VisionModel
from testdg.runs.folder import STATE, Folder

TRAINING = "training.json"


class TrainingFolder(Folder):
    """The folder of a trained model, and the working folder next to it, which has the state until it is complete."""

    def __init__(self, out: Path, about: dict[str, Any]) -> None:
        self.out, self.about = out, about
        super().__init__(out.resolve().with_name(out.resolve().name + ".training"), about, "training", "wait for it")

    def result(self) -> dict[str, Any] | None:
        """Read a complete training, or None if there is none; anything else at its place is an error."""
        path = self.out / TRAINING
        if not path.exists():
            if self.out.exists() and (not self.out.is_dir() or any(self.out.iterdir())):
                message = f"{self.out} exists and is not a trained model: choose another --out"
                raise UserError(message, code="folder-exists")
            return None
        try:
            about: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
            self._check_same(about, self.out)
            sums = about.pop("checksums")
            if checksum(about) != sums.pop(TRAINING):
                raise ValueError("its checksum does not fit")
            for name, expected in sums.items():
                if file_checksum(self.out / name) != expected:
                    raise ValueError(f"the checksum of {name} does not fit")
        except UserError:
            raise
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            message = f"{path} is damaged ({error}): choose another --out, or delete the folder"
            raise UserError(message, code="damaged-folder") from error
        return about

    def load(self) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
        try:
            if (state := self.saved_state()) is None:
                return None
            tensors, note = read_folder(state)
            if missing := {"about", "step", "seconds"} - note.keys():
                raise UserError(f"{state} is damaged: it lacks {min(missing)}", code="damaged-state")
        except UserError as error:
            raise UserError(f"{error}; delete {self.path} to start again", code="damaged-state") from error
        self._check_same(note["about"], self.path)
        return tensors, note

    def save(self, tensors: dict[str, Tensor], step: int, seconds: float) -> None:
        """Save the state of a training after some steps, atomically."""
        with self.writing():
            write_folder(self.path / STATE, tensors, {"about": self.about, "step": step, "seconds": seconds})

    def finish(self, model: VisionModel, about: dict[str, Any]) -> dict[str, Any]:
        """Write the model to the working folder, force it to disk, and rename it; the working folder is deleted."""
        fresh = self.path / "model"
        with self.writing():
            shutil.rmtree(fresh, ignore_errors=True)
            model.save(fresh)
            sums = {path.name: file_checksum(path) for path in sorted(fresh.iterdir())}
            content = {**about, "checksums": {**sums, TRAINING: checksum(about)}}
            replace_text(fresh / TRAINING, json.dumps(content, indent=2) + "\n")
            for path in fresh.iterdir():
                with path.open("r+b") as file:
                    os.fsync(file.fileno())
            if self.out.exists():
                self.out.rmdir()  # it is empty
            fresh.rename(self.out)
            sync_folder(self.out.resolve().parent)
        shutil.rmtree(self.path, ignore_errors=True)
        return about

    def _check_same(self, found: dict[str, Any], place: Path) -> None:
        flat, requested = ({**values["recipe"], **values} for values in (found, self.about))
        for key, value in requested.items():
            if key != "recipe" and flat.get(key) != value:
                remedy = "choose another --out, or delete the folder"
                message = f"{place} holds a training with {key} {flat.get(key)}, not {value}: {remedy}"
                raise UserError(message, code="other-training")
