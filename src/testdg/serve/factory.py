"""Adapters that share one source model, which is prepared once."""

import copy
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from torch import nn

from testdg.core.guard import guard
from testdg.core.online import OnlineModel
from testdg.methods import find_method
from testdg.runs.setup import Choices, Setup


class Factory:
    """A model, a method and its settings, from which every stream gets an adapter and a guard."""

    def __init__(
        self, model: str | Path | nn.Module, choices: Choices, settings: Mapping[str, Any] | None = None
    ) -> None:
        setup = Setup(model, choices, settings or {})
        setup.warm_up()
        self.model, self.names, self.canvas = setup.model, setup.names, setup.canvas
        self.notes, self.batch_size = setup.notes, setup.batch_size
        self._first: OnlineModel = setup.adapter
        self._untouched = copy.deepcopy(self.model)
        """Adapters are copied from this one: a copy of `model` during a pass would contain the hooks of the pass."""
        self.method = find_method(self._first.adapter.name)
        self.guarded = self._first.guard is not None
        self.learns = self.method.learns
        self.whole_pictures = self.canvas.size is None or self.model.task == "segmentation"
        """Whether memory and answers grow with the size of the pictures."""

    def describe(self) -> dict[str, Any]:
        """Model, method and settings to which saved states belong."""
        first = self._first.adapter
        return {"method": first.name, "settings": asdict(first.settings), **first.origin, "classes": self.names}

    def make_adapter(self) -> OnlineModel:
        """A new adapter in the state after warm-up."""
        first = self._first.adapter
        adapter = self.method(self._untouched, **asdict(first.settings))
        if first.warm:
            adapter.load_warm(first.warm)
        return adapter if self._first.guard is None else guard(adapter, self._first.guard.probe.images)
