"""Mistakes of the user, in one sentence each."""

import difflib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import ParamSpec, TypeVar

T = TypeVar("T")
P = ParamSpec("P")


class UserError(ValueError):
    """Something the user can correct.

    The message names the thing, the value and the remedy, and may be reworded at any time. `code` is a short name of
    the mistake that does not change, such as `unknown-setting`, for programs and tests.
    """

    code = "invalid"

    def __init__(self, message: str, code: str | None = None) -> None:
        super().__init__(message)
        if code is not None:
            self.code = code


def unknown(what: str, name: object, known: Iterable[str]) -> UserError:
    """Make the error for a name that does not exist, with the nearest one that does; its code is `unknown-WHAT`."""
    kind = what.partition(" of ")[0].partition(" to ")[0].replace(" ", "-")
    return UserError(f"unknown {what} {name!r}; {hint(name, sorted(known))}", code=f"unknown-{kind}")


class ErrorCollector:
    """Collects mistakes of the user, each once, so that one error names all of them."""

    def __init__(self) -> None:
        self.errors: dict[str, UserError] = {}

    def add(self, error: UserError) -> None:
        self.errors.setdefault(str(error), error)

    def attempt(self, where: str, function: Callable[P, T], *values: P.args, **named: P.kwargs) -> T | None:
        """Call a function; a mistake of the user is collected, and the result is None."""
        with self.collecting(where):
            return function(*values, **named)
        return None

    @contextmanager
    def collecting(self, where: str = "") -> Iterator[None]:
        """Collect a mistake of the user that a block raises; the code after the block runs all the same."""
        try:
            yield
        except UserError as error:
            self.add(UserError(f"{where}: {error}", error.code) if where else error)

    def raise_any(self, title: str = "") -> None:
        """Raise one error with all mistakes, if there are any; its code is that of the first."""
        if not self.errors:
            return
        code = next(iter(self.errors.values())).code
        if len(self.errors) == 1:
            raise UserError(f"{title}: {next(iter(self.errors))}".removeprefix(": "), code)
        listed = "; ".join(f"({number}) {text}" for number, text in enumerate(self.errors, 1))
        raise UserError(f"{title or 'the command'} has {len(self.errors)} mistakes: {listed}", code)


def look_up(what: str, name: str, known: Mapping[str, T]) -> T:
    """The thing of a name, or the error for a name that does not exist."""
    if name not in known:
        raise unknown(what, name, known)
    return known[name]


def hint(name: object, known: Iterable[str]) -> str:
    """Name the nearest of the names that exist, or all of them."""
    options = list(known)
    near = difflib.get_close_matches(str(name), options, n=1, cutoff=0.5)
    return f"did you mean {near[0]!r}?" if near else f"known: {', '.join(options) or 'none'}"


def visible(text: str) -> str:
    """A text whose control characters are written out: escape sequences, line ends, changes of direction."""
    escaped = (letter.encode("unicode_escape").decode() for letter in text)
    return "".join(one if one.isprintable() else code for one, code in zip(text, escaped, strict=True))
