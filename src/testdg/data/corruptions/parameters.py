"""The corruptions by name, and their parameters at the five severities, from parameters.toml."""

from collections.abc import Mapping, Sequence
from numbers import Integral
from pathlib import Path
from typing import NamedTuple

from testdg.errors import UserError, look_up
from testdg.files import read_toml

Row = tuple[tuple[float, ...], ...]
"""One tuple per severity; it is passed to the corruption's function as its last arguments."""
SEVERITIES: tuple[int, ...] = (1, 2, 3, 4, 5)

_LARGEST_CIFAR_SIDE = 64
_ELASTIC_SIDE = 244 / 224  # the 224 px set scales its elastic parameters by 244, not by the side


class ParameterSet(NamedTuple):
    """The parameters of all corruptions, made for images of one size."""

    name: str
    rows: Mapping[str, Row]


def _read_set(name: str) -> ParameterSet:
    rows = {corruption: _row(values) for corruption, values in _TABLES[name].items()}
    if name == "imagenet":
        rows["elastic_transform"] = tuple(
            tuple(_ELASTIC_SIDE * number for number in values) for values in rows["elastic_transform"]
        )
    return ParameterSet(name, rows)


def _row(values: Sequence[float | Sequence[float]]) -> Row:
    return tuple(tuple(value) if isinstance(value, Sequence) else (value,) for value in values)


_TABLES = read_toml(Path(__file__).with_suffix(".toml"), "parameters")
CIFAR, IMAGENET, TINY_IMAGENET = (_read_set(name) for name in ("cifar", "imagenet", "tiny-imagenet"))
WEATHER = _read_set("weather")
_SETS = {parameters.name: parameters for parameters in (CIFAR, IMAGENET, TINY_IMAGENET)}

_NAMES = tuple(CIFAR.rows)
STANDARD_ORDER = _NAMES[:15]
"""The fifteen corruptions of reported results, in the order of a continual stream."""
EXTRA = _NAMES[15:]
"""Four further corruptions, for the choice of hyperparameters."""


def check_severity(severity: int) -> int:
    if not isinstance(severity, Integral) or isinstance(severity, bool) or severity not in SEVERITIES:
        raise UserError(f"severity must be 1 to 5; got {severity!r}", code="wrong-severity")
    return severity


def parameters_of(name: str, severity: int, parameters: ParameterSet | str | None, side: int) -> tuple[float, ...]:
    """Parameters of a corruption; by default, the side of the images decides which set is used."""
    row = look_up("corruption", name, CIFAR.rows)
    check_severity(severity)
    chosen = parameters or (CIFAR if side <= _LARGEST_CIFAR_SIDE else IMAGENET)
    if isinstance(chosen, str):
        chosen = look_up("parameter set", chosen, _SETS)
    return (row if chosen is CIFAR else chosen.rows[name])[severity - 1]
