"""Settings of a method: a frozen dataclass whose fields have a help text and a range; parsing; values to tune."""

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
"""Number of configurations that are tuned of every method."""
RATE = "learning_rate"
Side = Literal["least", "largest"]
Presets = Mapping[str, Mapping[str, object]]
"""Settings of a method by benchmark."""


def option(default: Any, help: str, *, low: float | None = None, high: float | None = None) -> Any:
    """Declare a setting with its default, its help text and the range of its values."""
    return field(default=default, metadata={"help": help, "low": low, "high": high})


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Settings of every method."""

    seed: int = option(0, "seed of the method's own random numbers", low=0, high=2**32 - 1)
    precision: Literal["fp32", "bf16"] = option("fp32", "bf16 runs the passes under autocast; weights stay fp32")


def make_settings(settings_class: type[S], values: Mapping[str, Any]) -> S:
    """Build settings from keyword arguments; wrong names, types and values are refused."""
    return settings_class(**typed_settings(settings_class, values, texts=False))


def typed_settings(settings_class: type[Settings], values: Mapping[str, Any], *, texts: bool = True) -> dict[str, Any]:
    """Check values by name; with `texts`, a text is read by the type of its setting, as "0.1", "none" or "true"."""
    found = {}
    for name, value in values.items():
        about, kinds = _find(settings_class, name)
        value = _read(name, kinds, value) if texts and isinstance(value, str) else value
        found[name] = _check(about, kinds, value)
    return found


def _find(settings_class: type[Settings], name: str) -> tuple[Field[Any], tuple[Any, ...]]:
    """A setting and the types that it may have."""
    known = {f.name: f for f in fields(settings_class)}
    if name not in known:
        raise unknown("setting", name, known)
    hint = typing.get_type_hints(settings_class)[name]
    return known[name], typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)


def describe_settings(settings_class: type[Settings]) -> list[dict[str, Any]]:
    """List name, type, default and help of each setting."""
    described = [_find(settings_class, f.name) for f in fields(settings_class) if f.default is not MISSING]
    return [
        {"name": f.name, "type": _type_name(kinds), "default": f.default, "help": f.metadata.get("help", "")}
        for f, kinds in described
    ]


def order_for_display(settings_class: type[Settings]) -> list[dict[str, Any]]:
    """Describe settings: those of the method and its learning rate first, those that all methods share last."""
    parents = [{f.name for f in fields(parent)} for parent in settings_class.__mro__ if is_dataclass(parent)]
    described = describe_settings(settings_class)
    own = {one["name"]: sum(one["name"] in names for names in parents) for one in described}
    return sorted(described, key=lambda one: 1 if one["name"] == RATE else own[one["name"]])


def _check(about: Field[Any], kinds: tuple[Any, ...], value: Any) -> Any:
    """A value, as the type of its setting; a whole number may stand for a number, True may not stand for 1."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    for kind in kinds:
        if typing.get_origin(kind) is Literal:
            if value in typing.get_args(kind):
                return value
        elif number and (kind is float or (kind is int and isinstance(value, int))):
            break
        elif kind not in (int, float) and isinstance(value, kind):
            return value
    else:
        raise UserError(f"{about.name} must be {_type_name(kinds)}; got {value!r}", code="setting-type")
    value = kind(value)
    low, high = about.metadata.get("low"), about.metadata.get("high")
    if value != value or abs(value) == math.inf:
        raise UserError(f"{about.name} must be finite; got {value!r}", code="setting-range")
    if (low is not None and value < low) or (high is not None and value > high):
        bounds = f"at least {low}" if high is None else f"at most {high}" if low is None else f"in [{low}, {high}]"
        raise UserError(f"{about.name} must be {bounds}; got {value!r}", code="setting-range")
    return value


def _read(name: str, kinds: tuple[Any, ...], text: str) -> Any:
    """Convert text to the first of some types that accepts it."""
    for kind in kinds:
        if typing.get_origin(kind) is Literal:
            for literal in typing.get_args(kind):
                if str(literal) == text:
                    return literal
        elif kind is types.NoneType and text.lower() == "none":
            return None
        elif kind is bool and text.lower() in ("true", "false", "on", "off", "1", "0", "yes", "no"):
            return text.lower() in ("true", "on", "1", "yes")
        elif kind in (int, float):
            try:
                return kind(text)
            except ValueError:
                continue
        elif kind is str:
            return text
    raise UserError(f"{name} must be {_type_name(kinds)}; got {text!r}", code="setting-type")


def _type_name(kinds: tuple[Any, ...]) -> str:
    names = {int: "a whole number", float: "a number", bool: "true or false", str: "a text", types.NoneType: "none"}
    parts: list[str] = []
    for kind in kinds:
        if typing.get_origin(kind) is Literal:
            parts.extend(str(literal) for literal in typing.get_args(kind))
        else:
            parts.append(names.get(kind, getattr(kind, "__name__", str(kind))))
    return " or ".join(parts)


@dataclass(frozen=True, kw_only=True)
class Search:
    """What `testdg tune` tries of a method: all combinations of learning rates and of values of other settings.

    There are `BUDGET` configurations of every method. If the published value of a setting is not in `values`, it
    replaces the nearest value (of texts, the last), so that the published configuration is always tried.
    """

    rates: tuple[float, ...] = ()
    """Factors of the published learning rate in rising order, including 1; empty for a method without a rate."""
    values: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    """Values of other settings; numbers in rising order."""
    variants: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Settings of variants of the method, by name: a table has a row for each, and each is tuned separately."""

    def axes(self, published: Mapping[str, Any]) -> dict[str, tuple[Any, ...]]:
        """The values that are tried of each setting, given the published ones."""
        rates = {RATE: tuple(_scaled(published[RATE], factor) for factor in self.rates)} if self.rates else {}
        return rates | {key: _with(values, published[key]) for key, values in self.values.items()}

    def configurations(self, published: Mapping[str, Any]) -> list[dict[str, Any]]:
        """The settings of every combination."""
        axes = self.axes(published)
        return [dict(zip(axes, values, strict=True)) for values in product(*axes.values())] if axes else []


def is_ordered(values: tuple[Any, ...]) -> bool:
    """Whether values can be ordered: numbers can, names and switches cannot."""
    return all(isinstance(value, int | float) and not isinstance(value, bool) for value in values)


def next_value(settings_class: type[Settings], key: str, values: tuple[Any, ...], side: Side) -> Any:
    """The next value beyond the smallest or largest of some values, by the ratio of the last two.

    The bounds of the setting limit it; None where there is no further value.
    """
    before, last = sorted(values, reverse=side == "least")[-2:] if len(values) > 1 else (0, 0)
    if min(before, last) <= 0:  # there is no ratio
        return None
    low, high = (_find(settings_class, key)[0].metadata.get(bound) for bound in ("low", "high"))
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
    replaced = min(values, key=lambda value: abs(value - published)) if comparable else values[-1]
    found = tuple(published if value == replaced else value for value in values)
    return tuple(sorted(found)) if comparable else found
