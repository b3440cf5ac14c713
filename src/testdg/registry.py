"""Classes by name, such as methods and benchmarks: those of a package, of installed plugins and of plugin files.

A plugin is code that its user chose to run: only installed packages and files that the user names are loaded. Files
are passed on in an environment variable, so that the processes that a command starts load them, too.
"""

import importlib
import importlib.util
import os
import pkgutil
import sys
import warnings
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any, Generic, TypeVar

from testdg.errors import UserError, look_up

VARIABLE = "TESTDG_PLUGINS"
GROUPS = ("testdg.methods", "testdg.benchmarks")
_loaded: set[str] = set()

K = TypeVar("K", bound=type[Any])
C = TypeVar("C", bound=type[Any])


class Registry(Generic[K]):
    """The classes of one sort, such as "method": each registers itself in a module of the package or in a plugin."""

    def __init__(self, sort: str, package: str) -> None:
        self.sort, self.package = sort, package
        self.known: dict[str, Any] = {}

    def add(self, entry: C) -> C:
        """Register a class under its `name` (a class decorator)."""
        if not entry.name:
            raise UserError(f"{entry.__qualname__} needs a name", code="no-name")
        other = self.known.setdefault(entry.name, entry)
        if other.__qualname__ != entry.__qualname__:
            message = f"a {self.sort} named {entry.name!r} exists already: {other.__qualname__}"
            raise UserError(message, code="name-exists")
        self.known[entry.name] = entry
        return entry

    def all(self) -> dict[str, K]:
        """All classes by name, in alphabetical order."""
        _import_modules(self.package)
        load_plugins()
        return dict(sorted(self.known.items()))

    def find(self, name: str) -> K:
        """The class of a name."""
        return look_up(self.sort, name, self.all())


@cache
def _import_modules(name: str) -> None:
    """Import every module of a package, once."""
    package = importlib.import_module(name)
    for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
        importlib.import_module(module.name)


def add_plugin(file: str | Path) -> None:
    """Load a file now, and in every process that this one starts."""
    path = Path(file).resolve()
    if not path.is_file() or path.suffix != ".py":
        raise UserError(f"plugin {file} is not a Python file that exists", code="no-such-file")
    paths = [*filter(None, os.environ.get(VARIABLE, "").split(os.pathsep))]
    if str(path) not in paths:
        os.environ[VARIABLE] = os.pathsep.join([*paths, str(path)])
    load_plugins()


def load_plugins() -> None:
    """Load installed plugins and plugin files, once; their classes register themselves."""
    for entry in _installed_plugins():
        if (key := f"{entry.group}:{entry.name}") not in _loaded:
            _loaded.add(key)
            try:
                entry.load()
            except Exception as error:  # the package may have been installed for another purpose
                warnings.warn(f"plugin {entry.value} cannot be loaded ({_reason(error)})", stacklevel=2)
    for path in filter(None, os.environ.get(VARIABLE, "").split(os.pathsep)):
        if path not in _loaded:
            _loaded.add(path)
            _load_file(Path(path))


@cache
def _installed_plugins() -> list[EntryPoint]:
    """Plugins that installed packages declare; cached, because the search reads the metadata of all packages."""
    return [entry for group in GROUPS for entry in entry_points(group=group)]


def _load_file(path: Path) -> None:
    name = f"testdg_plugin_{path.stem}"
    if (folder := str(path.parent)) not in sys.path:  # as for a script, but last: modules next to it can be imported
        sys.path.append(folder)
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except UserError:
        raise
    except Exception as error:
        raise UserError(f"plugin {path} cannot be loaded: {_reason(error)}", code="damaged-plugin") from error


def _reason(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}"
