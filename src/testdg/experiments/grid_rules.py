"""What the keys of a grid may hold, and a notebook for everything that is wrong with it."""

from collections.abc import Callable, Mapping
from typing import Any, ParamSpec, TypeVar

from testdg.choices import CHOICES, is_text, option_name
from testdg.errors import UserError, hint

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
        """Raise one error with all mistakes, if there are any; of options, which need no title, too."""
        if len(self.sentences) == 1:
            raise UserError(f"{title}: {next(iter(self.sentences))}".removeprefix(": "))
        if self.sentences:
            listed = "; ".join(f"({number}) {text}" for number, text in enumerate(self.sentences, 1))
            raise UserError(f"{title or 'the command'} has {len(self.sentences)} mistakes: {listed}")


_TABLE: Rule = (lambda value: isinstance(value, dict), "a table")
_TABLES: Rule = (
    lambda value: isinstance(value, dict) and all(isinstance(item, dict) for item in value.values()),
    "a table for each method, as in [settings.tent]",
)
_CHOSEN: dict[str, Rule] = {key: (choice.fits, choice.rule) for key, choice in CHOICES.items()}
RUN: dict[str, Rule] = {"name": (is_text, "a text"), **_CHOSEN, "settings": _TABLE}
TOP: dict[str, Rule] = {**_CHOSEN, "settings": _TABLES}


def sound(
    values: Mapping[str, Any], rules: Mapping[str, Rule], where: str, mistakes: Mistakes, *, options: bool = False
) -> dict[str, Any]:
    """The values that are as they must be; all others are noted, as options where the values are of such."""
    kept = {}
    for key, value in values.items():
        several = isinstance(value, dict) and key in CHOICES and CHOICES[key].of != "axis"  # one for each benchmark
        if key not in rules:
            mistakes.note(f"{where}unknown key {key!r}, {hint(key, rules)}")
        elif not all(rules[key][0](item) for item in (value.values() if several else (value,))):
            name = option_name(key) if options and key in CHOICES else key
            mistakes.note(f"{where}{name} must be {rules[key][1]}; got {_shown(value)}")
        else:
            kept[key] = value
    return kept


def _shown(value: Any) -> str:
    """A value as the user gave it, who knows nothing of lists of one."""
    if isinstance(value, list | tuple) and len(value) < 2:
        return repr(value[0]) if value else "nothing"
    return repr(value)
