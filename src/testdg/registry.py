"""Classes by name: each registers itself where it is defined, and every module of its package is looked at."""

from __future__ import annotations

import importlib
import pkgutil
from typing import Any, Generic, TypeVar

from testdg.errors import UserError, unknown
from testdg.plugins import load_plugins

K = TypeVar("K", bound=type[Any])


class Registry(Generic[K]):
    """The classes of one sort, such as "method", that the modules of a package define."""

    def __init__(self, sort: str, package: str) -> None:
        self.sort, self.package = sort, package
        self.known: dict[str, K] = {}

    def add(self, kind: K) -> None:
        """Make a class known under its `name`."""
        if not kind.name:
            raise UserError(f"{kind.__qualname__} needs a name")
        if self.known.get(kind.name, kind).__qualname__ != kind.__qualname__:
            other = self.known[kind.name].__qualname__
            raise UserError(f"a {self.sort} named {kind.name!r} exists already: {other}")
        self.known[kind.name] = kind

    def all(self) -> dict[str, K]:
        """All classes, by name, in alphabetical order."""
        package = importlib.import_module(self.package)
        for module in pkgutil.iter_modules(package.__path__, package.__name__ + "."):
            importlib.import_module(module.name)
        load_plugins()
        return dict(sorted(self.known.items()))

    def find(self, name: str) -> K:
        """Look a class up by its name."""
        known = self.all()
        if name not in known:
            raise unknown(self.sort, name, known)
        return known[name]
