"""Protocols by name, with options (`cyclic,rounds=5`), or from a TOML file."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from testdg.errors import UserError, look_up
from testdg.evaluation.orders import ORDERS
from testdg.evaluation.protocol import Protocol
from testdg.evaluation.protocol_rules import mistakes
from testdg.files import read_toml

PROTOCOLS: dict[str, dict[str, Any]] = {
    "continual": {},
    "held-out": {"held_out": 5},
    "leave-one-out": {"held_out": "each"},
    "gradual": {"severity": "gradual", "order": 0},
    "cyclic": {"rounds": 3},
    "mixed": {"sampling": "mixed"},
    "dirichlet": {"sampling": "dirichlet"},
    "orders": {"order": "all"},
    **{f"order-{number}": {"order": number} for number in range(len(ORDERS))},
}


def read_protocols(text: str | Path | Protocol) -> list[Protocol]:
    """Read a protocol: its name or TOML file, then `,key=value` as often as needed. Ten protocols for `order=all`."""
    if isinstance(text, Protocol):
        return [text]
    name, *pairs = str(text).split(",")
    if name.endswith(".toml"):
        base = {"name": Path(name).stem, **read_toml(Path(name), "protocol file")}
    else:
        base = {"name": name, **look_up("protocol", name, PROTOCOLS)}
    values = {**base, **dict(_read_pair(pair) for pair in pairs)}
    if wrong := mistakes(values):
        raise UserError(f"protocol {name}: {'; '.join(wrong)}")
    if values.get("order") != "all":
        return [_make(values)]
    several = [_make({**values, "order": number}) for number in range(len(ORDERS))]
    return [replace(one, name=f"order-{one.order}") for one in several] if name == "orders" else several


def read_protocol(text: str | Path | Protocol) -> Protocol:
    """Read a protocol that is one run."""
    protocol, *more = read_protocols(text)
    if more:
        raise UserError(f"protocol {text} is {1 + len(more)} runs, one for each order: choose one, such as order=0")
    return protocol


def _make(values: dict[str, Any]) -> Protocol:
    frozen: dict[str, Any] = {key: tuple(value) if isinstance(value, list) else value for key, value in values.items()}
    if isinstance(tested := frozen.get("held_out"), str) and tested != "each":
        frozen["held_out"] = (tested,)
    return Protocol(**frozen)


def _read_pair(pair: str) -> tuple[str, Any]:
    """Read `key=value`: a number where it is one, else a text."""
    key, equals, text = pair.partition("=")
    if not equals:
        raise UserError(f"a protocol takes options as key=value, as in cyclic,rounds=5; got {pair!r}")
    for kind in (int, float):
        try:
            return key.strip(), kind(text)
        except ValueError:
            continue
    return key.strip(), text.strip()
