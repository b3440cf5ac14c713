"""Whether two results may stand in one table: seeds and settings may differ, data, stream and model may not."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from testdg.errors import UserError
from testdg.evaluation.result import Result

# `kind` and `order` only name what other fields hold, and a model is told by its fingerprint.
_FREE = {"kind", "order", "model", "device", "seed", "tuning"}
# What results say that were stored before a field existed.
_BEFORE = {
    "task": "classification",
    "rounds": 1,
    "sampling": "file",
    "concentration": "none",
    "sampling_seed": "none",
    "views": "one",
}


def differences(first: Result, second: Result, ignore: Collection[str] = ()) -> dict[str, tuple[Any, Any]]:
    """Fields of the protocols by which two results differ so that they cannot be compared, with both values."""
    one, two = {**_BEFORE, **first.protocol}, {**_BEFORE, **second.protocol}
    fields = [key for key in {**one, **two} if key not in _FREE and key not in ignore]
    return {key: (one.get(key), two.get(key)) for key in fields if one.get(key) != two.get(key)}


def comparable(first: Result, second: Result) -> bool:
    """Whether two results have the same protocol, apart from seed and settings."""
    return not differences(first, second)


def check_comparable(results: Sequence[Result], ignore: Collection[str] = ()) -> None:
    """Refuse results that cannot stand in one table, and name the fields by which they differ."""
    for result in results[1:]:
        if found := differences(results[0], result, ignore):
            told = "; ".join(f"{key} is {_short(one)} and {_short(two)}" for key, (one, two) in found.items())
            folders = f"{results[0].folder} and {result.folder}"
            raise UserError(f"{folders} cannot be compared: {told}; run both with the same protocol")


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 60 else text[:57] + "..."
