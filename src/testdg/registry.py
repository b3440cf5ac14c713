"""Classes by name: each registers itself where it is defined, and every module of its package is looked at."""

import importlib
import pkgutil
from functools import cache
from typing import Any, Generic, TypeVar

from testdg.errors import UserError, look_up
from testdg.plugins import load_plugins

K = TypeVar("K", bound=type[Any])
C = TypeVar("C", bound=type[Any])


class Registry(Generic[K]):
    """The classes of one sort, such as "method", that the modules of a package define."""

    def __init__(self, sort: str, package: str) -> None:
        self.sort, self.package = sort, package
        self.known: dict[str, Any] = {}

    def add(self, entry: C) -> C:
        """Make a class known under its `name` (a class decorator)."""
        if not entry.name:
            raise UserError(f"{entry.__qualname__} needs a name")
        if self.known.get(entry.name, entry).__qualname__ != entry.__qualname__:
            other = self.known[entry.name].__qualname__
            raise UserError(f"a {self.sort} named {entry.name!r} exists already: {other}")
        self.known[entry.name] = entry
        return entry

    def all(self) -> dict[str, K]:
        """All classes, by name, in alphabetical order."""
        _import_all(self.package)
        load_plugins()
        return dict(sorted(self.known.items()))

    def find(self, name: str) -> K:
        """Look a class up by its name."""
        return look_up(self.sort, name, self.all())


@cache
def _import_all(name: str) -> None:
    """Import every module of a package, once."""
    package = importlib.import_module(name)
    for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
        importlib.import_module(module.name)
