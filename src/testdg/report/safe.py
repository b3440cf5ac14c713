"""Texts from files that stay texts: no tags, no formulas, no commands for a terminal."""

import csv
import html
import io
import re
from collections.abc import Iterable
from typing import Any

from testdg.errors import visible
from testdg.files import csv_cell


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


def csv_text(rows: Iterable[Iterable[Any]]) -> str:
    """Rows as CSV; empty where there is no value."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(map(csv_cell, row) for row in rows)
    return text.getvalue()
