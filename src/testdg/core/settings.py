"""Settings of a method: a frozen dataclass whose fields carry a help text and a range; reading them; trying them."""

import math
import types
import typing
from collections.abc import Mapping
from dataclasses import MISSING, Field, dataclass, field, fields, is_dataclass
from itertools import product
from typing import Any, Literal, TypeVar

from testdg.errors import UserError, unknown

S = TypeVar("S", bound="Settings")
BUDGET = 12
"""Configurations of every method."""
RATE = "learning_rate"
Side = Literal["least", "largest"]


def option(default: Any, help: str, *, low: float | None = None, high: float | None = None) -> Any:
    """Declare a setting with its default, its help text and the range of its numbers."""
    return field(default=default, metadata={"help": help, "low": low, "high": high})


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What every method can be told."""

    seed: int = option(0, "seed of the method's own random numbers", low=0, high=2**32 - 1)
    precision: Literal["fp32", "bf16"] = option("fp32", "bf16 runs the passes under autocast; weights stay fp32")


def make_settings(settings_class: type[S], values: Mapping[str, Any]) -> S:
    """Build settings from keyword arguments; a wrong name, type or range is one clear sentence."""
    return settings_class(**{name: _check(*_look_up(settings_class, name), value) for name, value in values.items()})


def parse_settings(settings_class: type[Settings], pairs: list[str]) -> dict[str, Any]:
    """Read `key=value` texts by the types of the settings."""
    values = {}
    for pair in pairs:
        name, equals, text = pair.partition("=")
        if not equals:
            raise UserError(f"--set takes key=value; got {pair!r}")
        about, hint = _look_up(settings_class, name)
        values[name] = _check(about, hint, _read(name, hint, text))
    return values


def _look_up(settings_class: type[Settings], name: str) -> tuple[Field[Any], Any]:
    """A setting and its type."""
    known = {f.name: f for f in fields(settings_class)}
    if name not in known:
        raise unknown("setting", name, known)
    return known[name], typing.get_type_hints(settings_class)[name]


def describe_settings(settings_class: type[Settings]) -> list[dict[str, Any]]:
    """List name, type, default and help of each setting."""
    hints = typing.get_type_hints(settings_class)
    return [
        {"name": f.name, "type": _type_name(hints[f.name]), "default": f.default, "help": f.metadata.get("help", "")}
        for f in fields(settings_class)
        if f.default is not MISSING
    ]


def first_things_first(settings_class: type[Settings]) -> list[dict[str, Any]]:
    """Describe what belongs to a method itself and its learning rate, before what it has in common with others."""
    kinds = [{f.name for f in fields(parent)} for parent in settings_class.__mro__ if is_dataclass(parent)]
    described = describe_settings(settings_class)
    own = {one["name"]: sum(one["name"] in names for names in kinds) for one in described}
    return sorted(described, key=lambda one: 1 if one["name"] == "learning_rate" else own[one["name"]])


def _choices(hint: Any) -> tuple[Any, ...]:
    """Members of a union, or the type alone."""
    return typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)


def _check(about: Field[Any], hint: Any, value: Any) -> Any:
    for choice in _choices(hint):
        if typing.get_origin(choice) is Literal:
            if value in typing.get_args(choice):
                return value
        elif choice is float and isinstance(value, int | float) and not isinstance(value, bool):
            return _in_range(about, float(value))
        elif choice is int and isinstance(value, int) and not isinstance(value, bool):
            return _in_range(about, value)
        elif choice not in (int, float) and isinstance(value, choice):
            return value
    raise UserError(f"{about.name} must be {_type_name(hint)}; got {value!r}")


def _in_range(about: Field[Any], value: Any) -> Any:
    low, high = about.metadata.get("low"), about.metadata.get("high")
    if value != value or abs(value) == math.inf:
        raise UserError(f"{about.name} must be finite; got {value!r}")
    if (low is not None and value < low) or (high is not None and value > high):
        bounds = f"at least {low}" if high is None else f"at most {high}" if low is None else f"in [{low}, {high}]"
        raise UserError(f"{about.name} must be {bounds}; got {value!r}")
    return value


def _read(name: str, hint: Any, text: str) -> Any:
    """Turn text into the first member of the type that takes it."""
    for choice in _choices(hint):
        if typing.get_origin(choice) is Literal:
            for literal in typing.get_args(choice):
                if str(literal) == text:
                    return literal
        elif choice is types.NoneType and text.lower() == "none":
            return None
        elif choice is bool and text.lower() in ("true", "false", "on", "off", "1", "0", "yes", "no"):
            return text.lower() in ("true", "on", "1", "yes")
        elif choice in (int, float):
            try:
                return choice(text)
            except ValueError:
                continue
        elif choice is str:
            return text
    raise UserError(f"{name} must be {_type_name(hint)}; got {text!r}")


def _type_name(hint: Any) -> str:
    names = {int: "a whole number", float: "a number", bool: "true or false", str: "a text", types.NoneType: "none"}
    parts: list[str] = []
    for choice in _choices(hint):
        if typing.get_origin(choice) is Literal:
            parts.extend(str(literal) for literal in typing.get_args(choice))
        else:
            parts.append(names.get(choice, getattr(choice, "__name__", str(choice))))
    return " or ".join(parts)


@dataclass(frozen=True, kw_only=True)
class Search:
    """What `testdg tune` tries of a method: learning rates, and values of settings of its own, in every combination.

    They are `BUDGET` configurations, of every method. A value that was published for the benchmark and is not among
    `values` takes the place of the nearest (of texts, of the last), so that the published configuration is always tried
    and the number stays the same.
    """

    rates: tuple[float, ...] = ()
    """Factors of the published learning rate, rising, 1 among them; empty for a method without a rate."""
    values: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    """Values of other settings, numbers rising."""
    variants: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Settings that make a row of its own in a table, by name; such a row has configurations of its own."""

    def axes(self, published: Mapping[str, Any]) -> dict[str, tuple[Any, ...]]:
        """The values of each setting that are tried, given those that were published."""
        rates = {RATE: tuple(_scaled(published[RATE], factor) for factor in self.rates)} if self.rates else {}
        return rates | {key: _with(values, published[key]) for key, values in self.values.items()}

    def configurations(self, published: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Every combination; the settings of each."""
        axes = self.axes(published)
        return [dict(zip(axes, values, strict=True)) for values in product(*axes.values())] if axes else []


def is_ordered(values: tuple[Any, ...]) -> bool:
    """Whether values have a least and a largest: numbers do, names and switches do not."""
    return all(isinstance(value, int | float) and not isinstance(value, bool) for value in values)


def next_value(settings_class: type[Settings], key: str, values: tuple[Any, ...], side: Side) -> Any:
    """The value that widens the ordered values of a setting on one side, by the ratio of the last two there.

    It stops at the bounds of the setting; None where it cannot go further.
    """
    before, last = sorted(values, reverse=side == "least")[-2:] if len(values) > 1 else (0, 0)
    if min(before, last) <= 0:  # there is no ratio
        return None
    low, high = (_look_up(settings_class, key)[0].metadata.get(bound) for bound in ("low", "high"))
    whole = all(isinstance(value, int) for value in values)
    found = round(last * last / before) if whole else _rounded(last * last / before)
    found = found if low is None else max(found, low)
    found = found if high is None else min(found, high)
    return None if found == last else found


def _scaled(rate: float, factor: float) -> float:
    return rate if factor == 1 else _rounded(rate * factor)


def _rounded(value: float) -> float:
    return float(f"{value:.3g}")


def _with(values: tuple[Any, ...], published: Any) -> tuple[Any, ...]:
    """The values with the published one among them."""
    if published in values:
        return values
    comparable = is_ordered((*values, published))
    given_up = min(values, key=lambda value: abs(value - published)) if comparable else values[-1]
    found = tuple(published if value == given_up else value for value in values)
    return tuple(sorted(found)) if comparable else found
