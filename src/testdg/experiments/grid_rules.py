"""What the keys of a grid may hold, and a notebook for everything that is wrong with it."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Collection, Mapping
from typing import Any, ParamSpec, TypeVar

from testdg.errors import UserError
from testdg.evaluation.device import DEVICES

P = ParamSpec("P")
T = TypeVar("T")
Rule = tuple[Callable[[Any], bool], str]


class Mistakes:
    """Collects sentences, each once, so that all mistakes are told together."""

    def __init__(self) -> None:
        self.sentences: dict[str, None] = {}

    def note(self, sentence: str) -> None:
        """Remember a mistake."""
        self.sentences[sentence] = None

    def hear(self, where: str, function: Callable[P, T], *values: P.args, **named: P.kwargs) -> T | None:
        """Call a function; a mistake of the user is remembered, and None comes back."""
        try:
            return function(*values, **named)
        except UserError as error:
            self.note(f"{where}: {error}" if where else str(error))
            return None

    def tell(self, title: str) -> None:
        """Raise one error with all mistakes, if there are any."""
        if len(self.sentences) == 1:
            raise UserError(f"{title}: {next(iter(self.sentences))}")
        if self.sentences:
            listed = "; ".join(f"({number}) {text}" for number, text in enumerate(self.sentences, 1))
            raise UserError(f"{title} has {len(self.sentences)} mistakes: {listed}")


def _text(value: Any) -> bool:
    return isinstance(value, str) and value.strip() != ""


def _whole(low: int) -> Callable[[Any], bool]:
    return lambda value: type(value) is int and value >= low


def _listed(fits: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, list | tuple) and len(value) > 0 and all(fits(item) for item in value)


def _one_or_more(fits: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: fits(value) or _listed(fits)(value)


def _one_of(choices: Collection[str]) -> Rule:
    return (lambda value: isinstance(value, str) and value in choices), f"one of {', '.join(choices)}"


_NAMES: Rule = (_one_or_more(_text), "a name or a list of names")
_TEXT: Rule = (_text, "a text")
_COUNT: Rule = (_whole(1), "a whole number of at least 1")
AXES: dict[str, Rule] = {
    "method": _NAMES,
    "benchmark": _NAMES,
    "protocol": _NAMES,
    "seeds": (_one_or_more(_whole(0)), "a whole number of at least 0 or a list of them"),
}
FIELDS: dict[str, Rule] = {
    "preset": _TEXT,
    "model": _TEXT,
    "data": _TEXT,
    "preprocessing": _one_of(("model", "paper")),
    "precision": _one_of(("fp32", "bf16")),
    "device": _one_of(DEVICES),
    "batch_size": _COUNT,
}
OPTIONS: dict[str, Rule] = {
    "images": _COUNT,
    "severity": (lambda value: type(value) is int and 1 <= value <= 5, "a whole number from 1 to 5"),
    "domains": (_listed(_text), "a list of names"),
    "corruption_seed": (_whole(0), "a whole number of at least 0"),
    "subset": _TEXT,
    "skip_unreadable": (lambda value: isinstance(value, bool), "true or false"),
    "workers": _COUNT,
}
_TABLE: Rule = (lambda value: isinstance(value, dict), "a table")
_TABLES: Rule = (
    lambda value: isinstance(value, dict) and all(isinstance(item, dict) for item in value.values()),
    "a table for each method, as in [settings.tent]",
)
RUN: dict[str, Rule] = {"name": _TEXT, **AXES, **FIELDS, **OPTIONS, "settings": _TABLE}
TOP: dict[str, Rule] = {**AXES, **FIELDS, **OPTIONS, "settings": _TABLES}


def sound(values: Mapping[str, Any], rules: Mapping[str, Rule], where: str, mistakes: Mistakes) -> dict[str, Any]:
    """The values that are as they must be; all others are noted."""
    kept = {}
    for key, value in values.items():
        if key not in rules:
            mistakes.note(f"{where}unknown key {key!r}, {_hint(key, rules)}")
        elif not all(rules[key][0](item) for item in _by_benchmark(key, value)):
            mistakes.note(f"{where}{key} must be {rules[key][1]}; got {value!r}")
        else:
            kept[key] = value
    return kept


def _by_benchmark(key: str, value: Any) -> Collection[Any]:
    """The values of a key: one, or one for each benchmark."""
    several = isinstance(value, dict) and key in {**FIELDS, **OPTIONS}
    return value.values() if several else (value,)


def _hint(key: str, rules: Collection[str]) -> str:
    near = difflib.get_close_matches(key, rules, n=1, cutoff=0.5)
    return f"did you mean {near[0]!r}?" if near else f"known: {', '.join(rules)}"
