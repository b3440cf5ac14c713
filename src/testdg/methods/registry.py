"""Methods by name. A method registers itself where it is defined; every module of this package is looked at."""

from __future__ import annotations

import importlib
import pkgutil
from typing import TYPE_CHECKING, Any, TypeVar

from testdg.errors import UserError, unknown

if TYPE_CHECKING:
    from torch import nn

    from testdg.methods.adapter import Adapter

_METHODS: dict[str, type[Adapter]] = {}
T = TypeVar("T", bound="type[Adapter]")


def register(kind: T) -> T:
    """Make a method known under its `name` (a class decorator)."""
    if not kind.name or not kind.name.islower() or not kind.name.isidentifier():
        raise UserError(f"a method's name must be lower snake case; got {kind.name!r}")
    if _METHODS.get(kind.name, kind).__qualname__ != kind.__qualname__:
        raise UserError(f"a method named {kind.name!r} exists already: {_METHODS[kind.name].__qualname__}")
    _METHODS[kind.name] = kind
    return kind


def methods() -> dict[str, type[Adapter]]:
    """All methods, by name, in alphabetical order."""
    import testdg.methods as package

    for module in pkgutil.iter_modules(package.__path__, package.__name__ + "."):
        importlib.import_module(module.name)
    return dict(sorted(_METHODS.items()))


def find_method(name: str) -> type[Adapter]:
    """Look a method up by its name."""
    known = methods()
    if name not in known:
        raise unknown("method", name, known)
    return known[name]


def adapt(model: str | nn.Module, method: str = "testdg", *, preset: str | None = None, **settings: Any) -> Adapter:
    """Wrap a model (or the id or folder of one) so that it adapts to what it sees.

    `preset` names the published settings of a benchmark; keyword arguments win over it.
    """
    kind = find_method(method)
    return kind(model, **{**kind.preset(preset), **settings})
