"""Models of the user's own by name: a function in a plugin makes each."""

from collections.abc import Callable
from typing import TypeVar

from torch import nn

from testdg.errors import UserError
from testdg.plugins import load_plugins

Make = Callable[[], nn.Module]
F = TypeVar("F", bound=Make)
_MODELS: dict[str, Make] = {}


def register_model(name: str) -> Callable[[F], F]:
    """Make a model known under a name, as in `--model NAME`: the function gives a module, or what `load_model` gave."""
    if not name.isidentifier():
        raise UserError(f"the name of a model must be letters, digits and _; got {name!r}")

    def add(make: F) -> F:
        _MODELS[name] = make
        return make

    return add


def find_make(name: str) -> Make | None:
    """The function that makes a model of this name; None where there is none."""
    if name.isidentifier():
        load_plugins()
    return _MODELS.get(name)
