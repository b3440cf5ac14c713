"""Values are checked by the types that declare them; a mistake names the key, the rule and the value."""

import types
import typing
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct

from testdg.errors import UserError, hint

Name = Annotated[str, Meta(min_length=1)]
"""A text with something in it: `check_value` refuses blanks. A `pattern` in a union crashes msgspec 0.22."""


@cache
def field_types(kind: type[Struct]) -> dict[str, Any]:
    """The declared type of every field of a struct, in order."""
    hints = typing.get_type_hints(kind, include_extras=True)
    return {name: hints[name] for name in kind.__struct_fields__}


def check_value(declared: Any, key: str, value: Any) -> Any:
    """Convert a value to its declared type, or name the rule that it breaks."""
    try:
        if isinstance(value, str) and not value.strip():
            raise msgspec.ValidationError("blank")
        return msgspec.convert(value, declared)
    except msgspec.ValidationError as error:
        shown = value[0] if isinstance(value, list | tuple) and len(value) == 1 else value or value
        got = "nothing" if isinstance(value, list | tuple) and not value else repr(shown)
        raise UserError(f"{key} must be {rule_of(declared)}; got {got}", code="wrong-value") from error


def check_keys(values: Iterable[str], known: Iterable[str], where: str = "") -> None:
    """Refuse the first key that does not exist, with the nearest one that does."""
    options = list(known)
    for key in values:
        if key not in options:
            raise UserError(f"{where}unknown key {key!r}, {hint(key, options)}", code="unknown-key")


def is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def plain(value: Any) -> Any:
    """A value as TOML and JSON hold it: tuples are lists, and None is the text "none"."""
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return "none" if value is None else value


def rule_of(declared: Any) -> str:
    """The values that a type allows, in words."""
    if typing.get_origin(declared) is Annotated:
        inner, *notes = typing.get_args(declared)
        for note in notes:
            if note.le is not None:
                return f"{rule_of(inner)} from {note.ge} to {note.le}"
            if note.ge is not None:
                return f"{rule_of(inner)} of at least {note.ge}"
        return rule_of(inner)
    arguments = typing.get_args(declared)
    if typing.get_origin(declared) is Literal:
        texts = [str(one) for one in arguments]
        return " or ".join([", ".join(texts[:-1]), texts[-1]] if len(texts) > 1 else texts)
    if typing.get_origin(declared) is tuple:
        each = rule_of(arguments[0]).removeprefix("a ")
        return f"a list of {each.replace('name', 'names').replace('number', 'numbers')}"
    if isinstance(declared, types.UnionType) or typing.get_origin(declared) is typing.Union:
        return " or ".join(rule_of(one) for one in arguments if one is not types.NoneType)
    return {int: "a whole number", float: "a number", bool: "true or false", str: "a name"}.get(declared, "a table")
