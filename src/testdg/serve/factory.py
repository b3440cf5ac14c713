"""The session that all streams of a server begin with: one source model, prepared once."""

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from torch import nn

from testdg.runs.session import BATCH_SIZE, PictureOptions, open_pictures


class Factory:
    """A model, a method and its settings, from which every stream gets a session of its own."""

    def __init__(
        self, model: str | Path | nn.Module, options: PictureOptions, settings: Mapping[str, Any] | None = None
    ) -> None:
        self.session = open_pictures(model, options, settings)
        self.session.warm_up()
        assert self.session.untouched is not self.session.model  # copied now, before other threads predict
        self.model, self.names, self.canvas = self.session.model, self.session.names, self.session.canvas
        self.notes, self.batch_size = self.session.notes, BATCH_SIZE[self.model.task]
        self.method = type(self.session.adapter)
        self.guarded = self.session.online.guard is not None
        self.learns = self.method.learns
        self.whole_pictures = self.canvas.size is None or self.model.task == "segmentation"
        """Whether memory and answers grow with the size of the pictures."""

    def describe(self) -> dict[str, Any]:
        """Model, method and settings to which saved states belong."""
        first = self.session.adapter
        return {"method": first.name, "settings": asdict(first.settings), **first.origin, "classes": self.names}
