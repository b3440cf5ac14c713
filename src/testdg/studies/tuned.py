"""The file of chosen settings that `testdg tune` writes, and that grids, `bench` and `leaderboard` take."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import tomli_w

from testdg.errors import UserError
from testdg.files import replace_text, writing
from testdg.schema import plain

_HEAD = (
    "# Settings that `testdg tune` chose. Give the file to `testdg bench` and `testdg leaderboard` with --tuned.\n\n"
)


@dataclass(frozen=True)
class Chosen:
    """The settings of one row, and what was said for them."""

    name: str
    method: str
    preset: str
    settings: Mapping[str, Any]
    """Those that were searched over, and what the user gave to all configurations."""
    fixed: Mapping[str, Any] = field(default_factory=dict)
    """Those that make the row a variant of its method."""
    score: float | None = None
    published: float | None = None
    """The score of the published settings on the same streams."""
    edges: tuple[str, ...] = ()
    """Settings whose best value is the least or the largest that was tried."""
    widened: int = 0
    """How often the search was widened."""


@dataclass(frozen=True)
class Tuned:
    """What was chosen, by key of the row, and the conditions under which, which all rows share."""

    conditions: Mapping[str, Any] = field(default_factory=dict)
    rows: Mapping[str, Chosen] = field(default_factory=dict)

    @classmethod
    def read(cls, path: str | Path) -> Tuned:
        """Read a file."""
        try:
            values = tomllib.loads(Path(path).read_text(encoding="utf-8"))
            rows = {key: Chosen(**{**row, "edges": tuple(row.get("edges", ()))}) for key, row in values["rows"].items()}
            for row in rows.values():
                if not all(isinstance(one, Mapping) for one in (row.settings, row.fixed)):
                    raise TypeError(f"{row.name} has no settings")
            return cls(values["conditions"], rows)
        except OSError as error:
            message = f"tuned file {path} cannot be read: {error.strerror or error}"
            raise UserError(message, code="unreadable-file") from error
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            message = f"tuned file {path} is not one that `testdg tune` wrote ({error})"
            raise UserError(message, code="damaged-file") from error

    def write(self, path: Path) -> None:
        """Write the file in one step; TOML has no None, which is written as "none"."""
        rows = {key: _plain(asdict(row)) for key, row in self.rows.items()}
        with writing(path.parent):
            replace_text(path, _HEAD + tomli_w.dumps({"conditions": _plain(dict(self.conditions)), "rows": rows}))

    def joined(self, other: Tuned, path: Path) -> Tuned:
        """With rows of an earlier file, which must have been chosen under the same conditions; those of `self` win."""
        mine = _plain(dict(self.conditions))
        if differing := [key for key in {**mine, **other.conditions} if mine.get(key) != other.conditions.get(key)]:
            message = f"{path} was chosen with another {', '.join(differing)}: choose another file with --write"
            raise UserError(message, code="other-tuning")
        return replace(self, rows={**other.rows, **self.rows})

    def find(self, method: str, settings: Mapping[str, Any]) -> Chosen | None:
        """The row of a method: of its variants the one whose own settings the run has, the closest of several."""
        fits = [row for row in self.rows.values() if row.method == method and row.fixed.items() <= settings.items()]
        return max(fits, key=lambda row: len(row.fixed), default=None)


def _plain(values: Mapping[str, Any]) -> dict[str, Any]:
    """Values as TOML holds them; what is not known is left out, of settings it is a value of its own."""
    found: dict[str, Any] = plain({key: value for key, value in values.items() if value is not None})
    return found
