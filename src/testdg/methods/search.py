"""What `testdg tune` tries of a method: the same number of configurations for all, the published one among them."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import product
from typing import Any

BUDGET = 12
"""Configurations of every method."""
RATE = "learning_rate"


@dataclass(frozen=True, kw_only=True)
class Search:
    """Learning rates, and values of a setting of the method's own; every combination is tried.

    A value that was published for the benchmark and is not among `values` takes the place of the nearest (of texts,
    of the last), so that the published configuration is always tried and the number stays the same.
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


def _scaled(rate: float, factor: float) -> float:
    return rate if factor == 1 else float(f"{rate * factor:.3g}")


def _with(values: tuple[Any, ...], published: Any) -> tuple[Any, ...]:
    """The values with the published one among them."""
    if published in values:
        return values
    comparable = is_ordered((*values, published))
    given_up = min(values, key=lambda value: abs(value - published)) if comparable else values[-1]
    found = tuple(published if value == given_up else value for value in values)
    return tuple(sorted(found)) if comparable else found
