"""Rows of a comparison: methods, and the variants of a method that its `search` declares, by name as in tent:come."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from testdg.errors import UserError, look_up
from testdg.methods import Adapter, find_method, methods
from testdg.runs.session import open_model
from testdg.spec import SOURCE, RunSpec

SEPARATOR = ":"


@dataclass(frozen=True)
class Variant:
    """A method, perhaps with settings that make it a row of its own."""

    method: str
    name: str = ""
    fixed: Mapping[str, Any] = field(default_factory=dict)

    @cached_property
    def method_class(self) -> type[Adapter]:
        """The class of the method."""
        return find_method(self.method)

    @property
    def key(self) -> str:
        """How a user writes it."""
        return f"{self.method}{SEPARATOR}{self.name}" if self.name else self.method

    @property
    def title(self) -> str:
        """How a table calls it."""
        return f"{self.method_class.title} ({self.name})" if self.name else self.method_class.title

    def published(self, preset: str | None) -> dict[str, Any]:
        """All settings as they were published for a benchmark: defaults, then preset, then its own."""
        return {**vars(self.method_class.Settings()), **self.method_class.preset(preset), **self.fixed}


def find_variant(key: str) -> Variant:
    """A method or a variant of one, by its key."""
    method, _, name = key.partition(SEPARATOR)
    known = find_method(method).search.variants
    return Variant(method, name, look_up(f"variant of {method}", name, known)) if name else Variant(method)


def find_variants(keys: Sequence[str], task: str) -> list[Variant]:
    """The variants of some keys, each once; without keys, all that are for a task.

    Source is left out: it has no settings, and it is always run as the baseline.
    """
    if not keys:
        return all_variants(task)
    found = [variant for key in dict.fromkeys(keys) if (variant := find_variant(key)).method != SOURCE]
    if not found:
        raise UserError(f"{SOURCE} is always run as the baseline: name another method, too", code="no-method")
    return found


def compatible_variants(variants: Sequence[Variant], spec: RunSpec) -> list[Variant]:
    """The variants that can adapt the model of a run."""
    model = open_model(spec, "cpu")
    return [variant for variant in variants if variant.method_class.refuses(model) is None]


def all_variants(task: str) -> list[Variant]:
    """Every method that is for a task, each with its variants behind it."""
    kinds = [kind for name, kind in methods().items() if name != SOURCE and task in kind.tasks]
    return [Variant(kind.name, *own) for kind in kinds for own in [("", {}), *kind.search.variants.items()]]
