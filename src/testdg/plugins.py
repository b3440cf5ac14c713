"""Plugins: methods, benchmarks and models of the user's own, from installed packages or from files that are named.

A plugin is code that its user chose to run; nothing is loaded that was not installed or named. Files are kept in an
environment variable, so that the processes that a command starts see them, too.
"""

import importlib.util
import os
import sys
import warnings
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path

from testdg.errors import UserError

VARIABLE = "TESTDG_PLUGINS"
GROUPS = ("testdg.methods", "testdg.benchmarks")
_loaded: set[str] = set()


def add_plugin(file: str | Path) -> None:
    """Load a file now, and in every process that is started from here."""
    path = str(Path(file).resolve())
    if not Path(path).is_file() or not path.endswith(".py"):
        raise UserError(f"plugin {file} is not a Python file that exists")
    files = _files()
    if path not in files:
        os.environ[VARIABLE] = os.pathsep.join([*files, path])
    load_plugins()


def load_plugins() -> None:
    """Load what is installed and what was named, once; each registers itself."""
    for entry in _installed():
        if (key := f"{entry.group}:{entry.name}") not in _loaded:
            _loaded.add(key)
            try:
                entry.load()
            except Exception as error:  # of a package that is installed, perhaps for something else
                warnings.warn(f"plugin {entry.value} cannot be loaded ({_told(error)})", stacklevel=2)
    for path in _files():
        if path not in _loaded:
            _loaded.add(path)
            _load_file(Path(path))


@cache
def _installed() -> list[EntryPoint]:
    """What installed packages announce; looked for once, since all of them are looked through."""
    return [entry for group in GROUPS for entry in entry_points(group=group)]


def _files() -> list[str]:
    return [path for path in os.environ.get(VARIABLE, "").split(os.pathsep) if path]


def _load_file(path: Path) -> None:
    name = f"testdg_plugin_{path.stem}"
    if (folder := str(path.parent)) not in sys.path:  # as a script finds what lies beside it, last of all
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
        raise UserError(f"plugin {path} cannot be loaded: {_told(error)}") from error


def _told(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}"
