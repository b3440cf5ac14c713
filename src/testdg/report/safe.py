"""Texts from files that stay texts: no tags, no formulas, no commands for a terminal."""

import html
import re

from testdg.errors import visible

_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n")


def escape(text: str) -> str:
    """A text that a page shows as it is."""
    return html.escape(visible(" ".join(text.split())))


def markdown(text: str) -> str:
    """A text that Markdown shows as it is."""
    plain = visible(" ".join(text.split())).replace("&", "&amp;").replace("<", "&lt;")
    return re.sub(r"([\\`*_\[\]|#])", r"\\\1", plain)


def fenced(lines: list[str]) -> list[str]:
    """Lines that Markdown shows as they are, one below the other; nothing in them ends the fence."""
    shown = [visible(line) for line in lines]
    longest = max((len(run) for line in shown for run in re.findall("`+", line)), default=0)
    fence = "`" * max(3, longest + 1)
    return [f"{fence}text", *shown, fence]


def cell(text: str) -> str:
    """A text that a spreadsheet does not take for a formula."""
    return visible(f"'{text}" if text.lstrip(" ")[:1] in _FORMULA else text)
