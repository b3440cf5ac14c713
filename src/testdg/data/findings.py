"""What a look at one data set found."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from testdg.errors import UserError

T = TypeVar("T")


@dataclass
class Check:
    """One data set: what was found, what keeps it from being used, and what is only good to know."""

    name: str
    folder: Path
    found: str = ""
    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def attempt(self, read: Callable[..., T], *arguments: Any) -> T | None:
        """Read something; a mistake in it becomes a problem."""
        try:
            return read(*arguments)
        except UserError as error:
            self.problems.append(str(error))
            return None

    def compare(self, path: Path, count: int, expected: int, what: str = "images") -> None:
        """Note a problem where a number is not what it should be."""
        if count != expected:
            self.problems.append(f"{path} has {count} {what}: expected {expected}")

    def report(self, folder: Path, what: str, names: Iterable[str]) -> None:
        """Note a problem that some files of a folder share."""
        affected = list(names)
        if affected:
            self.problems.append(f"{folder}: {len(affected)} {what}, first {affected[0]}")
