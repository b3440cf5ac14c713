"""Draw the scores of all methods on all benchmarks."""

import textwrap
from typing import Any

import numpy as np

from testdg.evaluation.record import OWN_ORDERS
from testdg.report.record import images_per_domain
from testdg.report.style import GREY, PALETTE, SOURCE, label_figure, new_figure

_COLUMNS = 3


def draw(numbers: dict[str, Any], title: str, note: str) -> Any:
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
    label_figure(figure, title, "; ".join(filter(None, (note, left_out))))
    return figure


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
