"""What the values of a protocol may be, the ten orders among them; all mistakes are told at once."""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, get_args

from testdg.data.corruptions import STANDARD_ORDER
from testdg.data.stream import SamplingName
from testdg.errors import UserError, hint
from testdg.runs.choices import is_list, is_text, is_whole
from testdg.runs.views import RATIOS_OF, Size

_STANDARD = "gn sn in db gb mb zb sw fr fo br co el px jp"
_TABLE = """
br px gn mb zb gb in jp db el sn fr sw fo co
jp sn zb fr co fo db el gn br gb in px sw mb
co db gn sn sw fr gb zb el jp px br in mb fo
sn fo gb px sw el br in db fr co gn mb jp zb
px gb zb sw fo in br mb fr jp gn sn co db el
mb sw fo sn db co zb br fr el gb gn px jp in
fr in jp co zb gb px sw db mb br el sn fo gn
gb zb in fo sw jp gn fr sn br co mb px db el
db mb zb sn gn gb jp fo co px fr sw br el in
co gn db zb fr gb jp fo px el sn in sw mb br
"""
_NAMES = dict(zip(_STANDARD.split(), STANDARD_ORDER, strict=True))
ORDERS = tuple(tuple(_NAMES[short] for short in line.split()) for line in _TABLE.strip().splitlines())
"""The orders of the fifteen corruptions over which CoTTA's gradual and ten-order experiments are averaged."""


def in_order(number: int, names: Sequence[str]) -> list[str]:
    """Put some of the fifteen corruptions in one of the ten orders."""
    order = ORDERS[number]
    if other := [name for name in names if name not in order]:
        raise UserError(f"order {number} is one of the fifteen corruptions; {other[0]!r} is not among them")
    return [name for name in order if name in names]


def read_size(text: str) -> Size | None:
    """Height and width of `HxW`; None for anything else."""
    found = re.fullmatch(r"([1-9]\d{0,4})x([1-9]\d{0,4})", text)
    return None if found is None else (int(found[1]), int(found[2]))


def _size(value: Any) -> bool:
    return isinstance(value, str) and (value == "none" or read_size(value) is not None)


_SAMPLINGS = get_args(SamplingName)
RULES: dict[str, tuple[Callable[[Any], bool], str]] = {
    "name": (is_text, "a text"),
    "order": (
        lambda value: value in ("benchmark", "all") or is_whole(0, len(ORDERS) - 1)(value) or is_list(is_text)(value),
        f"benchmark, all, a number from 0 to {len(ORDERS) - 1} or a list of domains",
    ),
    "severity": (
        lambda value: value in ("benchmark", "gradual") or is_list(is_whole(1, 5))(value),
        "benchmark, gradual or a list of severities from 1 to 5",
    ),
    "rounds": (is_whole(1, 10_000), "a whole number from 1 to 10000"),
    "held_out": (
        lambda value: is_whole(0, 10_000)(value) or is_text(value) or is_list(is_text)(value),
        "a whole number of domains, 0 or more, a domain, a list of them or each",
    ),
    "then": (lambda value: value in ("end", "adapt"), "end or adapt"),
    "sampling": (lambda value: value in _SAMPLINGS, f"{', '.join(_SAMPLINGS[:-1])} or {_SAMPLINGS[-1]}"),
    "concentration": (lambda value: type(value) in (int, float) and 1e-6 <= value <= 1e6, "a number from 1e-6 to 1e6"),
    "seed": (is_whole(0, 2**32 - 1), "a whole number from 0 to 4294967295"),
    "resets": (lambda value: value in ("once", "domain"), "once or domain"),
    "views": (lambda value: type(value) is int and value in RATIOS_OF, "1, 2, 8 or 14"),
    "window": (_size, "height and width in pixels, as in 1024x1024"),
    "stride": (_size, "height and width in pixels, as in 768x768"),
}


def mistakes(values: Mapping[str, Any]) -> list[str]:
    """Everything that is wrong with the values of a protocol, a phrase each."""
    phrases = [f"unknown key {key!r}, {hint(key, RULES)}" for key in values if key not in RULES]
    phrases += [
        f"{key} must be {rule}; got {values[key]!r}"
        for key, (fits, rule) in RULES.items()
        if key in values and not fits(values[key])
    ]
    defaults = {"sampling": "file", "concentration": 0.1, "seed": 0, "window": "none", "stride": "none"}
    return phrases + _contradictions({**defaults, **values})


def _contradictions(values: Mapping[str, Any]) -> list[str]:
    wrong = []
    sampling = values["sampling"]
    mixed, resets = sampling == "mixed", values.get("resets") == "domain"
    if mixed and resets:
        wrong.append("resets at every domain need domains one after the other; sampling is mixed")
    if mixed and values.get("severity") == "gradual":
        wrong.append("gradual severities come one after the other; sampling is mixed")
    if resets and values.get("held_out"):
        wrong.append("held_out tests what was learnt from all domains; resets = domain forgets it")
    if values.get("then") == "adapt" and (mixed or not values.get("held_out") or values.get("held_out") == "each"):
        wrong.append("then = adapt goes on to the domains that were held out, one after the other: name some")
    if values["concentration"] != 0.1 and sampling != "dirichlet":
        wrong.append(f"concentration belongs to sampling dirichlet; sampling is {sampling}")
    if values["seed"] != 0 and sampling in ("file", "sorted"):
        wrong.append(f"seed belongs to sampling mixed or dirichlet; sampling is {sampling}")
    window, stride = read_size(str(values["window"])), read_size(str(values["stride"]))
    if (window is None) != (stride is None):
        wrong.append("window and stride belong together, as in window=1024x1024,stride=768x768")
    elif window and stride and (stride[0] > window[0] or stride[1] > window[1]):
        wrong.append(f"stride {values['stride']} leaves gaps between windows of {values['window']}: make it smaller")
    return wrong
