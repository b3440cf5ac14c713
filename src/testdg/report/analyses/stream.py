"""Draw the score along the stream, and under it the changes that methods noticed."""

import textwrap
from collections.abc import Callable, Sequence
from itertools import groupby
from typing import Any

import numpy as np

from testdg.report.style import GREY, INK, label_figure, method_styles, new_figure

Visits = Sequence[dict[str, Any]]
_MOST_LABELS = 30  # names of domains that fit above the axes


def draw_curves(numbers: dict[str, Any], title: str, note: str) -> Any:
    """Curves over shaded visits; a strip with a mark for every alarm, and lines where domains really change."""
    rows, metric = numbers["rows"], numbers["metric"]
    noticed = [row for row in rows if any(row["detections"])]
    strip = 0.35 + 0.22 * sum(len(row["detections"]) for row in noticed)
    heights = [4.0, strip] if noticed else [4.0]
    figure, grid = new_figure(10, sum(heights) + 0.6, len(heights), sharex=True, height_ratios=heights)
    axes = grid[0, 0]
    styles = method_styles([row["method"] for row in rows])
    colours = {row["name"]: colour for row, (colour, _) in zip(rows, styles, strict=True)}
    for row in rows:
        _curve(axes, numbers["positions"], row, colours[row["name"]], metric["unit"])
    shade_visits(axes, numbers["visits"])
    name_visits(axes, numbers["visits"])
    axes.set_ylabel(f"{metric['title']} (last {numbers['window']} batches of the domain)")
    axes.set(xlim=(0, numbers["positions"][-1]), ylim=(0, min(100, 1.05 * axes.dataLim.y1)))
    axes.grid(axis="y")
    several = any(len(row["seeds"]) > 1 for row in rows)
    heading = "mean (band: lowest\nto highest seed)" if several else "mean"
    axes.legend(loc="upper left", bbox_to_anchor=(1.01, 1), title=heading, title_fontsize=8, alignment="left")
    if noticed:
        _alarms(grid[1, 0], noticed, numbers, colours)
    darker = " (darker: more severe)" if _several_severities(numbers["visits"]) else ""
    grid[-1, 0].set_xlabel(f"images seen{darker}")
    return label_figure(figure, title, note)


def _curve(axes: Any, positions: Sequence[int], row: dict[str, Any], colour: str, unit: str) -> None:
    seeds = len(row["detections"])
    curve, low, high = (np.array(row[key], float) for key in ("curve", "low", "high"))
    spread = f", {seeds} seeds" if seeds > 1 else ""
    label = f"{row['name']}: {row['mean']:.1f} {unit}{spread}"
    axes.plot(positions, curve, color=colour, linewidth=1.5, label=textwrap.fill(label, 26))
    if seeds > 1:
        axes.fill_between(positions, low, high, color=colour, alpha=0.2, linewidth=0)


def shade_visits(axes: Any, visits: Visits) -> None:
    """Shade every other visit, or each by its severity."""
    severities = _several_severities(visits)
    for count, visit in enumerate(visits):
        alpha = 0.025 * (visit["severity"] or 0) if severities else 0.05 * (count % 2)
        axes.axvspan(visit["start"], visit["stop"], color=INK, alpha=alpha, linewidth=0)


def name_visits(axes: Any, visits: Visits, shown: Callable[[str], str] = str) -> list[str]:
    """Write domains above the axes, or rounds where there are many, as far as there is room; gives what it wrote."""
    rounds, domains = _joined(visits, "round"), _joined(visits, "round", "phase", "domain")
    many = len(domains) > _MOST_LABELS and len(rounds) > 1
    labels, written = [], -np.inf
    for first, last in rounds if many else domains:
        middle = (first["start"] + last["stop"]) / 2
        if first["start"] and (many or _several_severities(visits)):
            axes.axvline(first["start"], color=GREY, linewidth=0.8)
        if middle - written >= visits[-1]["stop"] / _MOST_LABELS:
            labels.append(f"round {first['round']}" if many else _label(first, len(rounds), shown))
            place = {"transform": axes.get_xaxis_transform(), "rotation": 35, "fontsize": 8, "ha": "left"}
            axes.text(middle, 1.02, labels[-1], **place)
            written = middle
    return labels


def _joined(visits: Visits, *keys: str) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """First and last of neighbours that agree in some keys."""
    groups = (list(group) for _, group in groupby(visits, key=lambda visit: [visit[key] for key in keys]))
    return [(group[0], group[-1]) for group in groups]


def _several_severities(visits: Visits) -> bool:
    return len({visit["severity"] for visit in visits}) > 1


def _label(visit: dict[str, Any], rounds: int, shown: Callable[[str], str]) -> str:
    """Name of a domain, with the round where there are several and a star where it only tests."""
    name = shown(str(visit["domain"]).replace("_", " "))
    return f"{name} *" if visit["phase"] == "held_out" else f"{name} ({visit['round']})" if rounds > 1 else name


def _alarms(axes: Any, rows: Sequence[dict[str, Any]], numbers: dict[str, Any], colours: dict[str, str]) -> None:
    """A line of marks for each run; a mark at the start of the batch that raised the alarm."""
    shade_visits(axes, numbers["visits"])
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
