"""Methods by name."""

from __future__ import annotations

from collections.abc import Sequence
from inspect import cleandoc
from typing import TYPE_CHECKING, Any, TypeVar

from testdg.errors import UserError
from testdg.registry import Registry

if TYPE_CHECKING:
    from torch import nn

    from testdg.core.adapter import Adapter
    from testdg.models import Preprocessing

_METHODS: Registry[type[Adapter]] = Registry("method", "testdg.methods")
T = TypeVar("T", bound="type[Adapter]")
EXAMPLE = """Examples:
    >>> from testdg.runs import run
    >>> result = run("digits-c", "{name}", images=100, domains=["snow", "frost"])
    >>> print(f"error {{result.mean_score:.1f}} %")
    error {error:.1f} %
"""


def register(method_class: T) -> T:
    """Register a method under its `name` (a class decorator)."""
    if not method_class.name.islower() or not method_class.name.isidentifier():
        raise UserError(f"a method's name must be lower snake case; got {method_class.name!r}", code="method-name")
    if (error := vars(method_class).get("example_error")) is not None:  # not inherited
        example = EXAMPLE.format(name=method_class.name, error=error)
        method_class.__doc__ = f"{cleandoc(method_class.__doc__ or '')}\n\n{example}"
    return _METHODS.add(method_class)


methods = _METHODS.all
"""Every method, by name."""
find_method = _METHODS.find
"""The method of a name; a UserError with the known names otherwise."""


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
    """Wrap a model so that it adapts to what it sees.

    Args:
        model: A module, or the id or folder of a model, as for `load_model`.
        method: The name of a method; `testdg methods` lists them.
        preset: The name of a benchmark whose published settings are used.
        preprocessing: Size, mean and deviation of the model's input; by default, the model's own.
        head: The name of the layer of the logits, if it is not found automatically.
        classes: The names of the model's classes.
        **settings: Settings of the method; they override the preset.

    Examples:
        >>> import testdg
        >>> from testdg.runs import source_model
        >>> benchmark = testdg.load_benchmark("digits-c", images=100, domains=["frost"])
        >>> adapter = testdg.adapt(source_model(benchmark), "testdg_aligned", preset="digits-c")
        >>> adapter.warm_up([benchmark.train().images[:256] / 255])
        >>> right = [adapter(batch.images).argmax(1) == batch.labels for batch in benchmark.stream(batch_size=20)]
        >>> print(f"right {100 * sum(float(one.sum()) for one in right) / 100:.1f} %")
        right 87.0 %
    """
    from testdg.models import load_model

    method_class = find_method(method)
    values = {**method_class.preset(preset), **settings}
    return method_class(load_model(model, preprocessing=preprocessing, head=head, classes=classes), **values)
