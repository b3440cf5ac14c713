"""Draw the error (or mIoU) along the stream, and under it the changes that methods noticed."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import Any

import numpy as np

from testdg.report.style import GREY, SOURCE, label_figure, looks, new_figure

_MOST_LABELS = 24  # names of domains that fit above the axes


def draw(numbers: dict[str, Any], title: str, note: str) -> Any:
    """Curves over shaded visits; a strip with a mark for every alarm, and lines where domains really change."""
    noticed = [row for row in numbers["rows"] if any(row["detections"])]
    strip = 0.35 + 0.22 * sum(len(row["detections"]) for row in noticed)
    heights = [4.0, strip] if noticed else [4.0]
    figure, grid = new_figure(10, sum(heights) + 0.6, len(heights), sharex=True, height_ratios=heights)
    axes = grid[0, 0]
    colours = dict(zip((row["name"] for row in numbers["rows"]), _colours(numbers["rows"]), strict=True))
    for row in numbers["rows"]:
        _curve(axes, numbers["positions"], row, colours[row["name"]])
    _visits(axes, numbers["visits"], names=True)
    axes.set_ylabel(f"{numbers['metric']['title']} (last {numbers['window']} batches of the domain)")
    axes.set(xlim=(0, numbers["positions"][-1]), ylim=(0, min(100, 1.05 * axes.dataLim.y1)))
    axes.grid(axis="y")
    several = any(len(row["seeds"]) > 1 for row in numbers["rows"])
    heading = "mean (band: lowest\nto highest seed)" if several else "mean"
    axes.legend(loc="upper left", bbox_to_anchor=(1.01, 1), title=heading, title_fontsize=8, alignment="left")
    if noticed:
        _alarms(grid[1, 0], noticed, numbers, colours)
    grid[-1, 0].set_xlabel("images seen")
    label_figure(figure, title, note)
    return figure


def _colours(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Black for the first row, which is Source."""
    return [SOURCE, *(colour for colour, _ in looks(len(rows) - 1))]


def _curve(axes: Any, positions: Sequence[int], row: dict[str, Any], colour: str) -> None:
    seeds = len(row["detections"])
    curve, low, high = (np.array(row[key], float) for key in ("curve", "low", "high"))
    spread = f", {seeds} seeds" if seeds > 1 else ""
    label = f"{row['name']}: {row['mean']:.1f} %{spread}"
    axes.plot(positions, curve, color=colour, linewidth=1.5, label=textwrap.fill(label, 26))
    if seeds > 1:
        axes.fill_between(positions, low, high, color=colour, alpha=0.2, linewidth=0)


def _visits(axes: Any, visits: Sequence[dict[str, Any]], names: bool) -> None:
    """Shade every other visit and write the domains above."""
    last, written = visits[-1]["stop"], -np.inf
    for count, visit in enumerate(visits):
        axes.axvspan(visit["start"], visit["stop"], color="#000000", alpha=0.05 * (count % 2), linewidth=0)
        middle = (visit["start"] + visit["stop"]) / 2
        if names and middle - written >= last / _MOST_LABELS:
            place = {"transform": axes.get_xaxis_transform(), "rotation": 35, "fontsize": 8}
            axes.text(middle, 1.01, _label(visit), **place)
            written = middle


def _label(visit: dict[str, Any]) -> str:
    name = str(visit["domain"]).replace("_", " ")
    return f"{name} *" if visit["phase"] == "held_out" else f"{name} ({visit['round']})" if visit["round"] > 1 else name


def _alarms(axes: Any, rows: Sequence[dict[str, Any]], numbers: dict[str, Any], colours: dict[str, str]) -> None:
    """A line of marks for each run; a mark at the start of the batch that raised the alarm."""
    _visits(axes, numbers["visits"], names=False)
    for visit in numbers["visits"][1:]:
        axes.axvline(visit["start"], color=GREY, linewidth=0.8)
    starts = [0, *numbers["positions"]]
    labels: list[str] = []
    for row in rows:
        for seed, found in zip(row["seeds"], row["detections"], strict=True):
            places = [starts[batch] for batch in found["batches"]]
            axes.plot(places, [len(labels)] * len(places), "|", color=colours[row["name"]], markersize=9, mew=1.8)
            alarms = f"{found['noticed']} of {found['real_changes']} noticed, {found['false_alarms']} false"
            labels.append(f"{row['name']}, seed {seed}:\n{alarms}")
    axes.set_yticks(range(len(labels)), labels, fontsize=7)
    axes.set_ylim(len(labels) - 0.4, -0.6)
    axes.set_title("changes detected (grey: real changes)", loc="left", fontsize=8)
