"""Points that stand for methods: what they cost against how well they do."""

from collections.abc import Sequence
from typing import Any

from testdg.report.style import SOURCE, method_styles

Rows = Sequence[dict[str, Any]]


def draw_methods(axes: Any, rows: Rows, key: str, label: str) -> None:
    """A point for each method; bars show quartiles of the cost and the deviation of the score, where there are some."""
    for row, (colour, marker) in zip(rows, method_styles([row["method"] for row in rows]), strict=True):
        if row["method"] == "source":
            _draw_source(axes, row, key)
            continue
        low, high = row.get(f"{key}_low", row[key]), row.get(f"{key}_high", row[key])
        bars = {"xerr": [[row[key] - low], [high - row[key]]], "yerr": row["deviation"]}
        axes.errorbar(
            row[key], row["score"], **bars, fmt=marker, color=colour, capsize=2, linewidth=1, label=row["name"]
        )
    _plain_logarithms(axes)
    axes.set_xlabel(label)
    axes.margins(0.15)
    axes.grid(True, which="major")


def _draw_source(axes: Any, row: dict[str, Any], key: str) -> None:
    """A star, or a line where it costs nothing, which a logarithm cannot show."""
    if row[key] > 0:
        axes.plot(row[key], row["score"], "*", color=SOURCE, markersize=9, label=row["name"])
    else:
        axes.axhline(row["score"], color=SOURCE, linestyle="--", linewidth=1, label=row["name"])


def _plain_logarithms(axes: Any) -> None:
    """A logarithmic axis with plain numbers, a few to a decade, or one where there are many decades."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    axes.set_xscale("log")
    low, high = axes.get_xlim()
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if high < 100 * low else (1,), numticks=8))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))
    axes.xaxis.set_minor_formatter(NullFormatter())
