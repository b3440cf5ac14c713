"""Texts from files stay texts in every format: not tags, not formulas, not commands for a terminal.

Templates of HTML, Markdown and LaTeX escape every value by default, each in its own way. A value that needs no escape
must say so: it is a `Markup`, made by a filter below or by a macro.
"""

import base64
import csv
import hashlib
import io
import re
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from importlib import resources
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from testdg.errors import visible
from testdg.files import csv_cell

_LATEX = {
    "\\": r"\textbackslash{}", "{": r"\{", "}": r"\}", "$": r"\$", "&": r"\&", "#": r"\#", "^": r"\textasciicircum{}",
    "_": r"\_", "~": r"\textasciitilde{}", "%": r"\%", "±": r"$\pm$", "<": r"$<$", ">": r"$>$", "|": r"\textbar{}",
    '"': "''",
}  # fmt: skip
_TEX_DELIMITERS = {
    "block_start_string": "<%", "block_end_string": "%>", "variable_start_string": "<<", "variable_end_string": ">>",
    "comment_start_string": "<#", "comment_end_string": "#>",
}  # fmt: skip


def one_line(text: str) -> str:
    """A text on one line, its control characters written out."""
    return visible(" ".join(text.split()))


def markdown(text: str) -> str:
    """A text that Markdown shows as it is."""
    plain = one_line(text).replace("&", "&amp;").replace("<", "&lt;")
    return re.sub(r"([\\`*_\[\]|#])", r"\\\1", plain)


def latex(text: str) -> str:
    """A text that LaTeX shows as it is."""
    return "".join(_LATEX.get(letter, letter) for letter in one_line(text)).replace("--", "-{}-")


def fenced(lines: Sequence[str]) -> list[str]:
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


def render(template: str, **values: Any) -> str:
    """Fill `templates/TEMPLATE.j2`, where TEMPLATE ends in html, md or tex; several empty lines become one."""
    kind = template.rpartition(".")[2]
    text = _environment(kind).get_template(f"{template}.j2").render(values)
    return text if kind == "html" else re.sub(r"\n{3,}", "\n\n", text).strip("\n") + "\n"


@cache
def _environment(kind: str) -> Environment:
    """`finalize` escapes each value for the format. With autoescape, what macros return counts as escaped."""
    escapes: dict[str, Callable[[str], str]] = {
        "html": one_line,
        "md": lambda text: Markup(markdown(text)),
        "tex": lambda text: Markup(latex(text)),
    }
    delimiters: dict[str, Any] = _TEX_DELIMITERS if kind == "tex" else {}
    environment = Environment(
        loader=PackageLoader("testdg.report"), autoescape=True, undefined=StrictUndefined,
        finalize=lambda value: value if isinstance(value, Markup) else escapes[kind](str(value)),
        trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True, **delimiters,
    )  # fmt: skip
    environment.filters |= {
        "fenced": lambda lines: Markup("\n".join(fenced(lines))),
        "comment": lambda text: Markup(one_line(text)),
        "minus": lambda text: Markup(latex(text).replace("-", "$-$")),
    }
    if kind == "html":
        folder = resources.files(__package__) / "templates"
        style, script = ((folder / name).read_text("utf-8") for name in ("page.css", "page.js"))
        digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
        environment.globals |= {"style": Markup(style), "script": Markup(script), "digest": digest}
    return environment
