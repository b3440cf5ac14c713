"""Variants: rows of a comparison, by key as in tent:come; and the file of settings that `testdg tune` chose for them.

A variant is a method, perhaps with settings that its `search` declares for a row of its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import msgspec
import tomli_w
from msgspec import Struct

from testdg.errors import UserError, look_up
from testdg.files import read_toml, replace_text, writing
from testdg.methods import Adapter, find_method, methods
from testdg.runs.session import open_model
from testdg.schema import plain
from testdg.spec import SOURCE, RunSpec


@dataclass(frozen=True)
class Variant:
    """A method, perhaps with settings of its own."""

    method: str
    name: str = ""
    fixed: Mapping[str, Any] = field(default_factory=dict)

    @cached_property
    def method_class(self) -> type[Adapter]:
        return find_method(self.method)

    @property
    def key(self) -> str:
        """The name in commands."""
        return f"{self.method}:{self.name}" if self.name else self.method

    @property
    def title(self) -> str:
        """The name in tables."""
        return f"{self.method_class.title} ({self.name})" if self.name else self.method_class.title

    def published(self, preset: str | None) -> dict[str, Any]:
        """All settings as published for a benchmark: defaults, overridden by the preset, then by its own."""
        return {**vars(self.method_class.Settings()), **self.method_class.preset(preset), **self.fixed}


def find_variant(key: str) -> Variant:
    method, _, name = key.partition(":")
    known = find_method(method).search.variants
    return Variant(method, name, look_up(f"variant of {method}", name, known)) if name else Variant(method)


def find_variants(keys: Sequence[str], task: str) -> list[Variant]:
    """The variants of some keys, each once; without keys, all variants for a task.

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
    """Every method for a task, each followed by its variants."""
    kinds = [kind for name, kind in methods().items() if name != SOURCE and task in kind.tasks]
    return [Variant(kind.name, *own) for kind in kinds for own in [("", {}), *kind.search.variants.items()]]


_HEAD = (
    "# Settings that `testdg tune` chose. Give the file to `testdg bench` and `testdg leaderboard` with --tuned.\n\n"
)


class TunedRow(Struct, frozen=True, forbid_unknown_fields=True):
    """The chosen settings of one row, with their scores."""

    name: str
    method: str
    preset: str
    settings: dict[str, Any]
    """Those of the search, and those that the user gave to all configurations."""
    fixed: dict[str, Any] = {}
    """Those that make the row a variant of its method."""
    score: float | None = None
    published: float | None = None
    """The score of the published settings on the same streams."""
    edges: tuple[str, ...] = ()
    """Settings whose best value is the smallest or the largest of the search."""
    widened: int = 0
    """How often the search was widened."""


class Tuned(Struct, frozen=True):
    """The content of the file: the chosen settings by key of the row, and the conditions, which all rows share."""

    conditions: dict[str, Any]
    rows: dict[str, TunedRow]

    @classmethod
    def read(cls, path: str | Path) -> Tuned:
        try:
            return msgspec.convert(read_toml(Path(path), "tuned file"), cls)
        except msgspec.ValidationError as error:
            message = f"tuned file {path} is not one that `testdg tune` wrote ({error})"
            raise UserError(message, code="damaged-file") from error

    def write(self, path: Path) -> None:
        """Write the file in one step. TOML has no None: in settings it is "none", other values are left out."""
        rows = {}
        for key, row in self.rows.items():
            known = {name: value for name, value in msgspec.structs.asdict(row).items() if value is not None}
            rows[key] = plain(known)
        with writing(path.parent):
            replace_text(path, _HEAD + tomli_w.dumps({"conditions": plain(self.conditions), "rows": rows}))

    def joined(self, other: Tuned, path: Path) -> Tuned:
        """Both files merged, whose conditions must be equal; rows of `self` win."""
        mine, theirs = plain(self.conditions), other.conditions
        if differing := [key for key in {**mine, **theirs} if mine.get(key) != theirs.get(key)]:
            message = f"{path} was chosen with another {', '.join(differing)}: use another file with --write"
            raise UserError(message, code="other-tuning")
        return Tuned(self.conditions, {**other.rows, **self.rows})

    def find(self, method: str, settings: Mapping[str, Any]) -> TunedRow | None:
        """The row of a method: of its variants, the one with most settings of its own that are all among `settings`."""
        fits = [row for row in self.rows.values() if row.method == method and row.fixed.items() <= settings.items()]
        return max(fits, key=lambda row: len(row.fixed), default=None)
