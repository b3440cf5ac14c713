"""The names of a model's classes: from its configuration, from a list, or plain numbers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from testdg.bounds import read_text
from testdg.errors import UserError
from testdg.models import VisionModel


def class_names(model: VisionModel, given: str | Path | Sequence[str] | None = None) -> list[str]:
    """A name for every class: `given`, or the lines of that file, else those of the model's configuration."""
    if given is None:
        return _configured(model) or [str(number) for number in range(model.classes)]
    names = _read(Path(given)) if isinstance(given, str | Path) else [str(name) for name in given]
    if len(names) != model.classes:
        whose = f"{given} names" if isinstance(given, str | Path) else "there are"
        raise UserError(f"{whose} {len(names)} classes; {model.name} tells {model.classes} apart: name each, in order")
    return names


def _read(path: Path) -> list[str]:
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
