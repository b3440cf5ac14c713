"""One look for all figures: colours that colour-blind readers can distinguish, units on axes, no dates in files."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain, cycle, product, repeat
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Any

from testdg.errors import UserError
from testdg.files import replacing, writing

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe and Ito's colours; Source is always black, and TestDG has the first of the others.
PALETTE = ("#D55E00", "#0072B2", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
SOURCE = "#000000"
GREY = "#8A8F98"
INK = "#1c1e21"
MARKERS = ("o", "s", "^", "D", "v", "P")
POINTS = [(colour, marker) for marker, colour in product(MARKERS, PALETTE)]
"""36 pairs of colour and marker, which repeat where there are more things to distinguish."""
SUFFIXES = (".png", ".pdf", ".svg")
_LOOK: Any = {
    "font.size": 9, "axes.titlesize": 9, "axes.linewidth": 0.7, "axes.spines.top": False, "axes.spines.right": False,
    "legend.frameon": False, "legend.fontsize": 8, "grid.alpha": 0.25, "grid.linewidth": 0.6, "svg.fonttype": "none",
    "svg.hashsalt": "testdg", "pdf.fonttype": 42, "text.parse_math": False, "text.color": INK, "axes.labelcolor": INK,
    "axes.edgecolor": INK, "xtick.color": INK, "ytick.color": INK,
}  # fmt: skip
_DATES: dict[str, dict[str, Any]] = {"svg": {"Date": None}, "pdf": {"CreationDate": None}, "png": {}}


def check_suffix(path: Path) -> Path:
    """Refuse a figure that cannot be written in that format."""
    if path.suffix.lower() not in SUFFIXES:
        raise UserError(f"figure {path} must end in {', '.join(SUFFIXES[:-1])} or {SUFFIXES[-1]}", code="figure-format")
    return path


def method_styles(methods: Sequence[str]) -> list[tuple[str, str]]:
    """Colour and marker of each method: Source has its own, TestDG the first of the others, at any position."""
    order = sorted(range(len(methods)), key=lambda n: (methods[n] != "source", not methods[n].startswith("testdg")))
    styles = chain(repeat((SOURCE, "*"), methods.count("source")), cycle(POINTS))
    found = dict(zip(order, styles, strict=False))
    return [found[number] for number in range(len(methods))]


def shortened(text: str, most: int) -> str:
    """A text of at most so many letters."""
    return text if len(text) <= most else f"{text[: most - 1]}\u2026"


def new_figure(
    width: float, height: float, rows: int = 1, columns: int = 1, layout: Any = "constrained", **more: Any
) -> tuple[Figure, Any]:
    """A figure with axes, (rows, columns); inches."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout=layout, dpi=130)
    return figure, figure.subplots(rows, columns, squeeze=False, **more)


def label_figure(figure: Figure, title: str, note: str, legend: Axes | None = None) -> Figure:
    """Write a title above a figure, a note below it and the legend of some axes next to it; returns the figure."""
    if legend is not None:
        figure.legend(*legend.get_legend_handles_labels(), loc="outside right center")
    above, below = (fill(text, int(letters * figure.get_figwidth())) for text, letters in ((title, 10), (note, 19)))
    figure.suptitle(above, x=0.01, ha="left", fontweight="bold", fontsize=10)
    figure.supxlabel(below, x=0.01, ha="left", fontsize=7, color="#555555")
    return figure


@contextmanager
def look() -> Iterator[None]:
    """Draw in the common look."""
    import matplotlib

    with matplotlib.rc_context(_LOOK):
        yield


def write_figure(draw: Callable[[], Figure], path: Path) -> Path:
    """Draw a figure and write it in one step, in the format of its suffix."""
    file_type = check_suffix(path).suffix[1:].lower()
    with look():
        figure = draw()
        with writing(path.parent), replacing(path) as fresh:
            save_figure(figure, fresh, file_type)
    return path


def save_figure(figure: Figure, file: Any, kind: str, **more: Any) -> None:
    """Write a figure in a format, without the date."""
    figure.savefig(file, format=kind, metadata=_DATES[kind], **more)
