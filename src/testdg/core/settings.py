"""Settings of a method: fields with a help text and a range, parsing of values, and the values that tuning tries."""

import math
import types
import typing
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import MISSING, dataclass, field, fields, is_dataclass
from itertools import product
from typing import Any, Literal, TypedDict, TypeVar

import msgspec

from testdg.errors import UserError, unknown
from testdg.schema import is_number, rule_of

S = TypeVar("S", bound="Settings")
BUDGET = 12
"""Number of configurations that tuning tries for each method."""
RATE = "learning_rate"
Side = Literal["least", "largest"]
Presets = Mapping[str, Mapping[str, object]]
"""Settings of a method by benchmark."""
_YES, _NO = ("true", "on", "yes", "1"), ("false", "off", "no", "0")
_WORDS = {"none": (None,), **dict.fromkeys(_YES, (True,)), **dict.fromkeys(_NO, (False,))}


def option(default: Any, help: str, *, low: float = -math.inf, high: float = math.inf) -> Any:
    """Declare a setting with its default, its help text and the range of its values."""
    return field(default=default, metadata={"help": help, "low": low, "high": high})


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Settings of every method."""

    seed: int = option(0, "seed of the method's own random numbers", low=0, high=2**32 - 1)
    precision: Literal["fp32", "bf16"] = option("fp32", "bf16 runs the passes under autocast; weights stay fp32")


class SettingInfo(TypedDict):
    """A setting as help and documentation show it."""

    name: str
    type: str
    default: object
    help: str


def make_settings(settings_class: type[S], values: Mapping[str, Any]) -> S:
    """Build settings from keyword arguments; wrong names, types and values are refused."""
    return settings_class(**typed_settings(settings_class, values, texts=False))


def typed_settings(settings_class: type[Settings], values: Mapping[str, Any], *, texts: bool = True) -> dict[str, Any]:
    """Check values and convert them to the types of their settings; `texts` also parses "0.1", "none" or "true"."""
    known, kinds = {f.name: f.metadata for f in fields(settings_class)}, typing.get_type_hints(settings_class)
    found: dict[str, Any] = {}
    for name, value in values.items():
        if name not in known:
            raise unknown("setting", name, known)
        readings = [float(value) if isinstance(value, float) else value]  # NumPy floats become plain ones
        if texts and isinstance(value, str):
            readings += _WORDS.get(value.lower(), ())
            for number in (int, float):
                with suppress(ValueError):
                    readings.append(number(value))
        for reading in readings:
            with suppress(msgspec.ValidationError):
                found[name] = msgspec.convert(reading, kinds[name])
                break
        else:
            raise UserError(f"{name} must be {_type_name(kinds[name])}; got {value!r}", code="setting-type")
        low, high = known[name].get("low", -math.inf), known[name].get("high", math.inf)
        if is_number(found[name]) and not (low <= found[name] <= high and math.isfinite(found[name])):
            raise UserError(f"{name} must be {_range_name(low, high)}; got {found[name]!r}", code="setting-range")
    return found


def _range_name(low: float, high: float) -> str:
    if math.isfinite(low) and math.isfinite(high):
        return f"in [{low}, {high}]"
    if math.isfinite(low):
        return f"at least {low}"
    return f"at most {high}" if math.isfinite(high) else "finite"


def _type_name(kind: object) -> str:
    return rule_of(kind) + " or none" * (types.NoneType in typing.get_args(kind))


def order_for_display(settings_class: type[Settings]) -> list[SettingInfo]:
    """Describe settings: first the method's own and its learning rate, last the ones that all methods share."""
    parents = [{f.name for f in fields(parent)} for parent in settings_class.__mro__ if is_dataclass(parent)]
    described = describe_settings(settings_class)
    own = {one["name"]: sum(one["name"] in names for names in parents) for one in described}
    return sorted(described, key=lambda one: 1 if one["name"] == RATE else own[one["name"]])


def describe_settings(settings_class: type[Settings]) -> list[SettingInfo]:
    """List name, type, default and help of each setting."""
    kinds = typing.get_type_hints(settings_class)
    return [
        {"name": f.name, "type": _type_name(kinds[f.name]), "default": f.default, "help": f.metadata.get("help", "")}
        for f in fields(settings_class)
        if f.default is not MISSING
    ]


@dataclass(frozen=True, kw_only=True)
class Search:
    """The search space of a method for `testdg tune`: all combinations of learning rates and other settings.

    Every method has `BUDGET` configurations. If the published value of a setting is not in `values`, it replaces the
    nearest number, or the last text, so that the published configuration is always tried.
    """

    rates: tuple[float, ...] = ()
    """Factors for the published learning rate, ascending, including 1; empty for a method without a learning rate."""
    values: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    """Values of other settings; numbers in ascending order."""
    variants: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Settings of variants of the method, by name: a table has a row for each, and each is tuned separately."""

    def axes(self, published: Mapping[str, Any]) -> dict[str, tuple[Any, ...]]:
        """The values to try for each setting, given the published settings."""
        axes: dict[str, tuple[Any, ...]] = {}
        if self.rates:
            axes[RATE] = tuple(_scaled(published[RATE], factor) for factor in self.rates)
        return axes | {key: _with(values, published[key]) for key, values in self.values.items()}

    def configurations(self, published: Mapping[str, Any]) -> list[dict[str, Any]]:
        """The settings of every combination."""
        axes = self.axes(published)
        if not axes:
            return []
        return [dict(zip(axes, values, strict=True)) for values in product(*axes.values())]


def is_ordered(values: tuple[Any, ...]) -> bool:
    """Whether values can be ordered: numbers can, names and switches cannot."""
    return all(map(is_number, values))


def next_value(settings_class: type[Settings], key: str, values: tuple[float, ...], side: Side) -> float | None:
    """The value that extends a list beyond its smallest or largest value, by the ratio of the last two there.

    It stays within the bounds of the setting; None if there is no further value.
    """
    before, last = sorted(values, reverse=side == "least")[-2:] if len(values) > 1 else (0, 0)
    if min(before, last) <= 0:  # there is no ratio
        return None
    (bounds,) = (f.metadata for f in fields(settings_class) if f.name == key)
    whole = all(isinstance(value, int) for value in values)
    found = round(last * last / before) if whole else _rounded(last * last / before)
    found = min(max(found, bounds.get("low", -math.inf)), bounds.get("high", math.inf))
    return None if found == last else found


def _scaled(rate: float, factor: float) -> float:
    return rate if factor == 1 else _rounded(rate * factor)


def _rounded(value: float) -> float:
    return float(f"{value:.3g}")


def _with(values: tuple[Any, ...], published: Any) -> tuple[Any, ...]:
    """The values, including the published one, which replaces another if necessary."""
    if published in values:
        return values
    comparable = is_ordered((*values, published))
    replaced = min(values, key=lambda value: abs(value - published)) if comparable else values[-1]
    found = tuple(published if value == replaced else value for value in values)
    return tuple(sorted(found)) if comparable else found
