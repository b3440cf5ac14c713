"""Methods by name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from testdg.errors import UserError
from testdg.registry import Registry

if TYPE_CHECKING:
    from torch import nn

    from testdg.methods.adapter import Adapter
    from testdg.models import Preprocessing

_METHODS: Registry[type[Adapter]] = Registry("method", "testdg.methods")
T = TypeVar("T", bound="type[Adapter]")


def register(method_class: T) -> T:
    """Make a method known under its `name` (a class decorator)."""
    if not method_class.name.islower() or not method_class.name.isidentifier():
        raise UserError(f"a method's name must be lower snake case; got {method_class.name!r}")
    return _METHODS.add(method_class)


methods = _METHODS.all
"""Every method, by name."""
find_method = _METHODS.find
"""The method of a name, or a sentence that names those that there are."""


def adapt(
    model: str | nn.Module,
    method: str = "testdg_aligned",
    *,
    preset: str | None = None,
    preprocessing: Preprocessing | None = None,
    head: str | None = None,
    classes: Sequence[str] | None = None,
    **settings: Any,
) -> Adapter:
    """Wrap a model (or the id or folder of one) so that it adapts to what it sees.

    `preset` names the published settings of a benchmark; keyword arguments win over it. `preprocessing`, `head` and
    `classes` are those of `load_model`.
    """
    from testdg.models import load_model

    method_class = find_method(method)
    values = {**method_class.preset(preset), **settings}
    return method_class(load_model(model, preprocessing=preprocessing, head=head, classes=classes), **values)
