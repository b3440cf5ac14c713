"""Whether two results may stand in one table: seeds and settings may differ, data, stream and model may not."""

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import TypeVar

from testdg.errors import UserError
from testdg.runs.result import Result

Item = TypeVar("Item")
Key = TypeVar("Key")
BY_ORDER = ("domains", "held_out")
"""Fields that differ between the orders of one protocol."""
# other fields have the content of `kind` and `order`, and a model is identified by its fingerprint
_FREE = {"kind", "order", "model", "device", "seed", "tuning"}


def differences(first: Result, second: Result, ignore: Collection[str] = ()) -> dict[str, tuple[object, object]]:
    """Fields of the records by which two results differ so that they cannot be compared, with both values."""
    one, two = first.record, second.record
    fields = [key for key in {**one, **two} if key not in _FREE and key not in ignore]
    return {key: (one.get(key), two.get(key)) for key in fields if one.get(key) != two.get(key)}


def comparable(first: Result, second: Result) -> bool:
    """Whether two results have the same record, apart from seed and settings."""
    return not differences(first, second)


def same_but_for_order(first: Result, second: Result) -> bool:
    """Whether two results have the same record and the same domains, in whatever order."""
    domains = [{*result.record["domains"], *result.record["held_out"]} for result in (first, second)]
    return domains[0] == domains[1] and not differences(first, second, ignore=BY_ORDER)


def grouped(items: Iterable[Item], fits: Callable[[Item, Item], bool]) -> list[list[Item]]:
    """Items in groups: each joins the first group whose first item it fits."""
    groups: list[list[Item]] = []
    for item in items:
        home = next((group for group in groups if fits(group[0], item)), None)
        if home is None:
            groups.append([item])
        else:
            home.append(item)
    return groups


def by_key(pairs: Iterable[tuple[Key, Item]]) -> dict[Key, list[Item]]:
    """The items of each key, such as the name of a row; keys in the order of their first items."""
    found: dict[Key, list[Item]] = {}
    for key, item in pairs:
        found.setdefault(key, []).append(item)
    return found


def check_comparable(results: Sequence[Result], ignore: Collection[str] = ()) -> None:
    """Refuse results that cannot stand in one table, and name the fields by which they differ."""
    for result in results[1:]:
        if found := differences(results[0], result, ignore):
            reasons = "; ".join(f"{key} is {_short(one)} and {_short(two)}" for key, (one, two) in found.items())
            folders = f"{results[0].folder} and {result.folder}"
            message = f"{folders} cannot be compared: {reasons}; run both with the same protocol"
            raise UserError(message, code="not-comparable")


def _short(value: object) -> str:
    text = str(value)
    return text if len(text) <= 60 else text[:57] + "..."
