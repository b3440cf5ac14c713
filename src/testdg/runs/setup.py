"""What a stream of pictures needs before its first one: model, adapter, guard, names of classes."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from torch import nn

from testdg.bounds import read_text
from testdg.core.guard import guard
from testdg.core.online import load_online
from testdg.core.state import VALUES, read_folder
from testdg.errors import UserError
from testdg.methods import Adapter, find_method
from testdg.models import VisionModel, load_model
from testdg.models.canvas import Canvas
from testdg.models.device import find_device
from testdg.runs.clean import SourceFolder
from testdg.runs.predictor import Predictor

DEFAULT_METHOD = "testdg_aligned"
BATCH_SIZE = {"classification": 32, "segmentation": 1}


@dataclass(frozen=True, kw_only=True)
class Choices:
    """What a user chose about a stream; `method` is the default one, or that of a loaded state, if left out."""

    method: str | None = None
    source: Path | None = None
    guard: bool = True
    classes: str | Path | Sequence[str] | None = None
    device: str = "auto"
    load_state: Path | None = None


class Setup:
    """A model that is ready for pictures, but for what it learns from the source's (`warm_up`)."""

    def __init__(self, model: str | Path | nn.Module, choices: Choices, settings: Mapping[str, Any]) -> None:
        self.model: VisionModel = load_model(model).to(find_device(choices.device))
        self.names = class_names(self.model, choices.classes)
        self.source = None if choices.source is None else SourceFolder(choices.source, self.names)
        self.notes: list[str] = []
        self.adapter: Any = self._loaded(choices, settings) or self._fresh(choices, settings)
        self.canvas = Canvas(self.model.preprocessing)
        self.predictor = Predictor(self.adapter, self.model, self.names)

    @property
    def batch_size(self) -> int:
        """Pictures in a batch, where nobody says otherwise."""
        return BATCH_SIZE[self.model.task]

    def warm_up(self) -> None:
        """Learn from clean pictures what the method needs."""
        if self.adapter.awaits_source:
            self.adapter.warm_up(self._clean(self.adapter).batches(self.adapter))

    def _clean(self, adapter: Any) -> SourceFolder:
        if self.source is None:
            told = f"{adapter.name} needs clean pictures of the source for {adapter.source_data}"
            raise UserError(f"{told}: name a folder of them with --source, or choose another method")
        return self.source

    def _fresh(self, choices: Choices, settings: Mapping[str, Any]) -> Any:
        method = find_method(choices.method or DEFAULT_METHOD)
        values = {**self._without_source(method, settings), **settings}
        adapter = method(self.model, **values)
        if self.source is not None and not adapter.source_images() and (method.name == "source" or not choices.guard):
            why = "learns nothing" if method.name == "source" else "needs no clean pictures"
            raise UserError(f"--source has no effect: {method.name} {why}; leave it out")
        if adapter.awaits_source:
            self._clean(adapter)  # or says what is missing
        return self._guarded(adapter, choices)

    def _without_source(self, method: type[Adapter], settings: Mapping[str, Any]) -> dict[str, Any]:
        """Without clean pictures, a method that can be aligned to the beginning of the stream is."""
        sketches = "sketch" in {field.name for field in fields(method.Settings)}
        if self.source is not None or not sketches or "sketch" in settings:
            return {}
        images = settings.get("source_images", method.Settings().source_images)  # type: ignore[attr-defined]
        self.notes.append(
            f"no --source: the first {images} pictures stand for the clean ones, and {method.name} begins after them; "
            "name a folder of clean pictures if the stream does not begin with such"
        )
        return {"sketch": "stream"}

    def _guarded(self, adapter: Adapter, choices: Choices) -> Any:
        """A guard around what learns; where `warm_up` shows it no clean pictures, a few of the source are its probe."""
        if not choices.guard or adapter.name == "source":
            return adapter
        return guard(adapter, None if self.source is None or adapter.awaits_source else self.source.probe(adapter))

    def _loaded(self, choices: Choices, settings: Mapping[str, Any]) -> Any:
        """What `--load-state` names, with or without a guard around it; None where nothing is named."""
        folder = choices.load_state
        if folder is None:
            return None
        if settings:
            raise UserError(f"--load-state {folder} brings its own settings: leave out {sorted(settings)[0]}")
        guarded, method = _kind_of_state(folder)
        if choices.method not in (None, method):
            raise UserError(f"--load-state {folder} is of {method}, not of {choices.method}: leave out --method")
        found = load_online(folder, self.model)
        if not guarded:
            return self._guarded(found.adapter, choices)
        if self.source is not None:
            raise UserError(f"--source has no effect: --load-state {folder} knows its clean pictures; leave it out")
        return found if choices.guard else found.adapter


def class_names(model: VisionModel, given: str | Path | Sequence[str] | None = None) -> list[str]:
    """A name for every class: `given`, or the lines of that file, else those of the model's configuration."""
    if given is None:
        return _configured(model) or [str(number) for number in range(model.classes)]
    names = _read_names(Path(given)) if isinstance(given, str | Path) else [str(name) for name in given]
    if len(names) != model.classes:
        whose = f"{given} names" if isinstance(given, str | Path) else "there are"
        raise UserError(f"{whose} {len(names)} classes; {model.name} tells {model.classes} apart: name each, in order")
    return names


def _read_names(path: Path) -> list[str]:
    try:
        return [line.strip() for line in read_text(path).splitlines() if line.strip()]
    except (OSError, ValueError) as error:
        raise UserError(f"{path} is not a list that can be read: expected one class per line ({error})") from error


def _configured(model: VisionModel) -> list[str] | None:
    """The names that transformers or timm keep beside a network; None where they say nothing."""
    labels: Any = getattr(getattr(model.network, "config", None), "id2label", None)
    if isinstance(labels, dict):
        found = [labels.get(number, labels.get(str(number))) for number in range(model.classes)]
        placeholders = all(name == f"LABEL_{number}" for number, name in enumerate(found))
        return None if placeholders or None in found else [str(name) for name in found]
    labels = (getattr(model.network, "pretrained_cfg", None) or {}).get("label_names")
    fits = isinstance(labels, list | tuple) and len(labels) == model.classes
    return [str(name) for name in labels] if fits else None


def put_back(adapter: Any, folder: Path) -> dict[str, Any]:
    """Put a saved state into an adapter that was made as the saved one; gives the note that was saved with it."""
    tensors, about = read_folder(folder)
    adapter.check_origin(about)
    adapter.load_state(tensors, about["values"])
    return dict(about.get("note", {}))


def _kind_of_state(folder: Path) -> tuple[bool, str]:
    try:
        about = json.loads((folder / VALUES).read_text(encoding="utf-8"))
        return "guard" in about["values"], str(about["method"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(f"--load-state {folder} is no saved state: {error}") from error
