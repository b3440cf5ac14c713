"""Figures of how well methods do: against what they cost, and on all benchmarks."""

import textwrap
from collections.abc import Sequence
from typing import Any

import numpy as np

from testdg.report.record import images_per_domain
from testdg.report.style import GREY, PALETTE, SOURCE, label_figure, method_styles, new_figure
from testdg.runs.record import OWN_ORDERS

Rows = Sequence[dict[str, Any]]
_COLUMNS = 3  # panels of an overview that stand side by side


def draw_cost(numbers: dict[str, Any], title: str, note: str) -> Any:
    """Time on the left, memory on the right; to the left is cheaper."""
    figure, grid = new_figure(10, 4.2, 1, 2, sharey=True)
    time, memory = grid[0]
    on = f"{numbers['device']}, threads: {numbers['threads']}" if numbers["device"] == "cpu" else numbers["device"]
    draw_methods(time, numbers["rows"], "ms", f"time of a batch of {numbers['batch_size']}, ms ({on}; bars: quartiles)")
    draw_methods(memory, numbers["rows"], "memory_mib", f"memory, MiB ({numbers['memory']})")
    time.set_ylabel(numbers["metric"]["title"])
    figure.legend(*time.get_legend_handles_labels(), loc="outside right center")
    return label_figure(figure, title, note)


def draw_parameters(numbers: dict[str, Any], title: str, note: str) -> Any:
    """A point for each method; a line marks the size of the whole model."""
    figure, grid = new_figure(6.6, 4.2)
    axes = grid[0, 0]
    draw_methods(axes, numbers["rows"], "parameters", "learnable parameters (the method's own included)")
    axes.axvline(numbers["model_parameters"], color=GREY, linestyle=":", linewidth=1.2, label="the whole model")
    axes.set_ylabel(numbers["metric"]["title"])
    figure.legend(*axes.get_legend_handles_labels(), loc="outside right center")
    return label_figure(figure, title, note)


def draw_methods(axes: Any, rows: Rows, key: str, label: str) -> None:
    """A point for each method; bars show quartiles of the cost and the deviation of the score, where there are some."""
    for row, (colour, marker) in zip(rows, method_styles([row["method"] for row in rows]), strict=True):
        if row["method"] == "source":
            _draw_source(axes, row, key)
            continue
        low, high = row.get(f"{key}_low", row[key]), row.get(f"{key}_high", row[key])
        bars = {"xerr": [[row[key] - low], [high - row[key]]], "yerr": row["deviation"], "capsize": 2, "linewidth": 1}
        axes.errorbar(row[key], row["score"], **bars, fmt=marker, color=colour, label=row["name"])
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


def draw_overview(numbers: dict[str, Any], title: str, note: str) -> Any:
    """A panel for each group of runs that can be compared, the best method on top."""
    groups = numbers["groups"]
    columns = min(_COLUMNS, len(groups))
    bands = [groups[start : start + columns] for start in range(0, len(groups), columns)]
    most = [max(len(group["rows"]) for group in band) for band in bands]
    heights = [max(_height(group) for group in band) for band in bands]
    figure, grid = new_figure(max(5.5, 4.6 * columns), sum(heights) + 0.6, len(bands), columns, height_ratios=heights)
    for axes in grid.flat[len(groups) :]:
        axes.set_visible(False)
    for axes, group, room in zip(grid.flat, groups, np.repeat(most, columns), strict=False):
        _panel(axes, group, room)
    left_out = f"damaged and left out: {len(numbers['damaged'])}" if numbers["damaged"] else ""
    return label_figure(figure, title, "; ".join(filter(None, (note, left_out))))


def _panel(axes: Any, group: dict[str, Any], room: int) -> None:
    """The rows of a group, from the top; `room` is for as many as the largest of its neighbours has."""
    rows = group["rows"]
    for place, row in enumerate(rows):
        colour = SOURCE if row["method"] == "source" else PALETTE[0]
        axes.errorbar(row["score"], place, xerr=row["deviation"], fmt="o", color=colour, capsize=2, markersize=5)
        if row["held_out"] is not None:
            axes.plot(row["held_out"], place, "D", color=PALETTE[1], markersize=4)
    for row in (row for row in rows if row["method"] == "source"):
        axes.axvline(row["score"], color=GREY, linestyle="--", linewidth=0.9)
    held_out = "; diamonds: held out" if any(row["held_out"] is not None for row in rows) else ""
    axes.set_yticks(range(len(rows)), [_label(row) for row in rows], fontsize=7)
    axes.set_ylim(room - 0.4, -0.6)
    axes.set_xlabel(f"{group['metric']['title']}{held_out}", fontsize=8)
    axes.margins(x=0.15)
    axes.grid(axis="x")
    sizes = f"{images_per_domain(group)} images per domain, batches of {group['batch_size']}"
    order = "" if group["order"] == OWN_ORDERS[0] else f", {group['order']}"
    heading = f"{group['benchmark']}, {group['kind']}{order}, {group['model']}\n{sizes}"
    axes.set_title(heading, loc="left", fontsize=8)


def _label(row: dict[str, Any]) -> str:
    seeds = f", {row['runs']} runs" if row["runs"] > 1 else ""
    return textwrap.fill(f"{row['name']}{seeds}", 46)


def _height(group: dict[str, Any]) -> float:
    """Inches of a panel."""
    return 0.9 + len(group["rows"]) * (0.1 + 0.13 * max(1 + _label(row).count("\n") for row in group["rows"]))
