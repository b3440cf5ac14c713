"""Adapters around one shared source model: warmed up once, made as often as there are streams."""

import copy
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from torch import nn

from testdg.core.guard import Guard, guard
from testdg.methods import find_method
from testdg.runs.setup import Choices, Setup


class Factory:
    """A model, a method and its settings, ready to make adapters with a guard around each."""

    def __init__(
        self, model: str | Path | nn.Module, choices: Choices, settings: Mapping[str, Any] | None = None
    ) -> None:
        self.setup = Setup(model, choices, settings or {})
        self.setup.warm_up()
        self.model, self.names, self.canvas = self.setup.model, self.setup.names, self.setup.canvas
        self._first: Any = self.setup.adapter
        self._untouched = copy.deepcopy(self.model)
        """What adapters are made from: a pass of the other one leaves its hooks in a copy that is made meanwhile."""
        self.method = find_method(self._first.name)
        self.guarded = isinstance(self._first, Guard)
        self.learns = self.method.name != "source"

    def describe(self) -> dict[str, Any]:
        """What the states of these adapters belong to."""
        settings = asdict(self._first.settings)
        return {"method": self.method.name, "settings": settings, **self._first.origin, "classes": self.names}

    def fresh(self) -> Any:
        """An adapter that has seen nothing but the source."""
        adapter = self.method(self._untouched, **asdict(self._first.settings))
        if self._first.warm:
            adapter.load_warm(self._first.warm)
        return guard(adapter, self._first.probe.images) if self.guarded else adapter
