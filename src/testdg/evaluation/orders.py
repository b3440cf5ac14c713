"""The ten orders of the fifteen corruptions over which CoTTA's gradual and ten-order experiments are averaged."""

from collections.abc import Sequence

from testdg.data.corruptions import STANDARD_ORDER
from testdg.errors import UserError

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


def in_order(number: int, names: Sequence[str]) -> list[str]:
    """Put some of the fifteen corruptions in one of the ten orders."""
    order = ORDERS[number]
    if other := [name for name in names if name not in order]:
        raise UserError(f"order {number} is one of the fifteen corruptions; {other[0]!r} is not among them")
    return [name for name in order if name in names]
