"""Figures of the analyses. Each draws the numbers of `testdg.studies.analyses` and computes none itself."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from testdg.report.figures import draw_curves
from testdg.report.record import images_per_domain
from testdg.report.style import (
    GREY,
    PALETTE,
    POINTS,
    SOURCE,
    label_figure,
    method_styles,
    new_figure,
    write_figure,
)
from testdg.runs.record import OWN_ORDERS
from testdg.studies.analyses.subject import Numbers

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Rows = Sequence[Numbers]
_COLUMNS = 3  # panels of an overview in a row
_TSNE: dict[str, Any] = {"xticks": [], "yticks": [], "xlabel": "t-SNE, first axis", "ylabel": "t-SNE, second axis"}


# How well methods do: against what they cost, and on all benchmarks


def draw_cost(numbers: Numbers, title: str, note: str) -> Figure:
    """Score against time (left panel) and memory (right panel); cheaper methods are further left."""
    figure, grid = new_figure(10, 4.2, 1, 2, sharey=True)
    time, memory = grid[0]
    on = f"{numbers['device']}, threads: {numbers['threads']}" if numbers["device"] == "cpu" else numbers["device"]
    draw_methods(time, numbers["rows"], "ms", f"time of a batch of {numbers['batch_size']}, ms ({on}; bars: quartiles)")
    draw_methods(memory, numbers["rows"], "memory_mib", f"memory, MiB ({numbers['memory']})")
    time.set_ylabel(numbers["metric"]["title"])
    return label_figure(figure, title, note, time)


def draw_parameters(numbers: Numbers, title: str, note: str) -> Figure:
    """A point for each method; a line marks the size of the whole model."""
    figure, grid = new_figure(6.6, 4.2)
    axes = grid[0, 0]
    draw_methods(axes, numbers["rows"], "parameters", "learnable parameters (the method's own included)")
    axes.axvline(numbers["model_parameters"], color=GREY, linestyle=":", linewidth=1.2, label="the whole model")
    axes.set_ylabel(numbers["metric"]["title"])
    return label_figure(figure, title, note, axes)


def draw_methods(axes: Axes, rows: Rows, key: str, label: str) -> None:
    """A point for each method; bars show quartiles of the cost and the deviation of the score, if known."""
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


def _draw_source(axes: Axes, row: Numbers, key: str) -> None:
    """A star; a line if the cost is 0, which a logarithmic axis cannot show."""
    if row[key] > 0:
        axes.plot(row[key], row["score"], "*", color=SOURCE, markersize=9, label=row["name"])
    else:
        axes.axhline(row["score"], color=SOURCE, linestyle="--", linewidth=1, label=row["name"])


def _plain_logarithms(axes: Axes) -> None:
    """A logarithmic axis with plain numbers: three per decade, or one if there are many decades."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    axes.set_xscale("log")
    low, high = axes.get_xlim()
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if high < 100 * low else (1,), numticks=8))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))
    axes.xaxis.set_minor_formatter(NullFormatter())


def draw_overview(numbers: Numbers, title: str, note: str) -> Figure:
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
        _overview_panel(axes, group, room)
    left_out = f"damaged and left out: {len(numbers['damaged'])}" if numbers["damaged"] else ""
    return label_figure(figure, title, "; ".join(filter(None, (note, left_out))))


def _overview_panel(axes: Axes, group: Numbers, room: int) -> None:
    """The rows of a group, from the top; `room` is the number of rows of the largest panel next to it."""
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


def _label(row: Numbers) -> str:
    seeds = f", {row['runs']} runs" if row["runs"] > 1 else ""
    return textwrap.fill(f"{row['name']}{seeds}", 46)


def _height(group: Numbers) -> float:
    """Inches of a panel."""
    return 0.9 + len(group["rows"]) * (0.1 + 0.13 * max(1 + _label(row).count("\n") for row in group["rows"]))


# What a model sees: its attention, its embeddings, and the prototypes among them


def draw_attention(numbers: Numbers, title: str, note: str) -> Figure:
    """A column for each domain: the image, then the image under the attention map of each model."""
    rows, names = numbers["rows"], list(numbers["rows"][0]["maps"])
    figure, grid = new_figure(1.9 * len(rows) + 0.9, 1.95 * (1 + len(names)) + 1.0, 1 + len(names), len(rows))
    top = max(np.max(row["maps"][name]) for row in rows for name in names)
    for column, row in zip(grid.T, rows, strict=True):
        image = np.moveaxis(np.array(row["image"], np.uint8), 0, 2)
        height, width = image.shape[:2]
        column[0].set_title(row["domain"].replace("_", " "), fontsize=8)
        for axes in column:
            axes.imshow(image, extent=(0, width, height, 0))
            axes.set(xticks=[], yticks=[])
            axes.spines[:].set_visible(False)
        for axes, name in zip(column[1:], names, strict=True):
            look = {"cmap": "inferno", "vmin": 0, "vmax": top, "alpha": 0.65, "interpolation": "nearest"}
            shown = axes.imshow(np.array(row["maps"][name]), extent=(0, width, height, 0), **look)
            entropy = f"entropy {row['entropy'][name]:.2f} ± {row['entropy_error'][name]:.2f}"
            axes.set_xlabel(entropy, fontsize=7)
    for axes, name in zip(grid[:, 0], ("image", *names), strict=True):
        axes.set_ylabel(name, fontsize=8)
    figure.colorbar(shown, ax=grid[1:, :], label="share of attention", shrink=0.7)
    uniform = f"{numbers['uniform_entropy']:.2f} if uniform"
    return label_figure(figure, title, f"{note}; entropy in nats, mean over images; {uniform}")


def draw_embeddings(numbers: Numbers, title: str, note: str) -> Figure:
    """A point for each image: before adaptation on the left, after it on the right."""
    figure, grid = new_figure(10.5, 5.0, 1, 2)
    labels = np.array(numbers["labels"])
    for axes, when in zip(grid[0], ("before", "after"), strict=True):
        points = np.array(numbers[when]["points"])
        for number, (domain, (colour, marker)) in enumerate(zip(numbers["domains"], cycle(POINTS), strict=False)):
            mine, name = points[labels == number], domain.replace("_", " ")
            style = {"s": 14, "color": colour, "marker": marker, "alpha": 0.75, "linewidths": 0}
            axes.scatter(*mine.T, label=name, **style)
        apart = numbers[when]["silhouette"]
        heading = f"{when} adaptation" + ("" if apart is None else f": silhouette of the domains {apart:+.2f}")
        axes.set_title(heading, loc="left")
        axes.set(**_TSNE)
        axes.set_aspect("equal", adjustable="datalim")  # both panels are equally large
    figure.legend(*grid[0, 0].get_legend_handles_labels(), loc="outside right center", markerscale=1.6)
    return label_figure(figure, title, note)


def draw_gap(numbers: Numbers, title: str, note: str) -> Figure:
    """Distances between domains before and after adaptation, on one scale; the diagonal is empty."""
    names = [name.replace("_", " ") for name in numbers["domains"]]
    side = max(2.6, 0.27 * len(names) + 1.0)
    figure, grid = new_figure(2 * side + 1.4, side + 1.3, 1, 2)
    top = max(np.max(numbers[when]["distance"]) for when in ("before", "after"))
    for axes, when in zip(grid[0], ("before", "after"), strict=True):
        matrix = np.array(numbers[when]["distance"], float)
        np.fill_diagonal(matrix, np.nan)
        picture = axes.imshow(matrix, cmap="cividis", vmin=0, vmax=top or 1)
        axes.set_facecolor("#DDDDDD")
        axes.set_xticks(range(len(names)), names, rotation=60, ha="right", rotation_mode="anchor", fontsize=7)
        axes.set_yticks(range(len(names)), names if when == "before" else [], fontsize=7)
        axes.spines[:].set_visible(False)
        axes.set_title(_heading(when, numbers[when]), loc="left", fontsize=8)
    figure.colorbar(picture, ax=grid[0], label=f"Chamfer distance of {numbers['space']} (squared units)", shrink=0.8)
    return label_figure(figure, title, note)


def _heading(when: str, distances: Numbers) -> str:
    if distances["mean"] is None:
        return f"{when} adaptation"
    relative = "" if distances["mean_relative"] is None else f"; {distances['mean_relative']:.2f} of the total variance"
    return f"{when} adaptation: mean {distances['mean']:.3g}{relative}"


def draw_probes(numbers: Numbers, title: str, note: str) -> Figure:
    """Accuracy of probes along the stream: a panel for each space, a colour for each target; bands: standard error."""
    spaces = list(dict.fromkeys(name.split(" from ")[1] for name in numbers["probes"]))
    figure, grid = new_figure(4.6 * len(spaces) + 0.4, 4.2, 1, len(spaces), sharey=True)
    for axes, space in zip(grid[0], spaces, strict=True):
        for target, colour in (("class", PALETTE[1]), ("domain", PALETTE[0])):
            if (found := numbers["probes"].get(f"{target} from {space}")) is not None:
                mean, error = np.array(found["mean"]), np.array(found["error"])
                axes.plot(numbers["positions"], mean, "o-", color=colour, markersize=3.5, linewidth=1.4, label=target)
                axes.fill_between(
                    numbers["positions"], mean - error, mean + error, color=colour, alpha=0.2, linewidth=0
                )
                chance = numbers["chance"][target]
                axes.axhline(chance, color=colour, linestyle=":", linewidth=1, label=f"{target}: chance")
        for position in numbers["positions"][1:]:
            axes.axvline(position, color=GREY, alpha=0.3, linewidth=0.6)
        axes.set(xlabel="images seen (grey: end of a domain)", ylim=(0, 102), title=f"from {space}")
        axes.set_xlim(0, None)
        axes.grid(axis="y")
    grid[0, 0].set_ylabel("accuracy of a linear probe, %")
    return label_figure(figure, title, note, grid[0, 0])


def draw_prototypes(numbers: Numbers, title: str, note: str) -> Figure:
    """A panel for each selection of prototypes."""
    selections = numbers["selections"]
    columns = min(2, len(selections))
    rows = -(-len(selections) // columns)
    figure, grid = new_figure(4.4 * columns, 4.0 * rows + 0.6, rows, columns)
    for axes in grid.flat[len(selections) :]:
        axes.set_visible(False)
    for axes, one in zip(grid.flat, selections, strict=False):
        points = np.array(one["points"])
        chosen = points[one["chosen"]]
        axes.scatter(*points.T, s=16, color=GREY, alpha=0.7, linewidths=0, label="embedding in the queue")
        axes.scatter(*chosen.T, s=34, color=PALETTE[0], edgecolors="black", linewidths=0.6, label="prototype")
        name, sizes = one["domain"].replace("_", " "), f"{len(chosen)} of {len(points)}"
        quality = f"MMD² {one['mmd2']:.2g}, drawn at random {one['mmd2_random']:.2g}"
        axes.set_title(f"after {name} (batch {one['batch']}): {sizes}\n{quality}", loc="left", fontsize=8)
        axes.set(**_TSNE)
    return label_figure(figure, title, note, grid.flat[0])


def draw_drift(numbers: Numbers, title: str, note: str) -> Figure:
    """Drift along the stream on the left; means over all batches on the right."""
    figure, grid = new_figure(10, 3.8, 1, 2, width_ratios=[4, 1])
    axes, bars = grid[0]
    for number, (kind, colour) in enumerate(zip(("original", "updated"), PALETTE, strict=False)):
        values = np.array(numbers[kind])
        axes.plot(numbers["positions"], values, color=colour, linewidth=1.3, label=f"target to {kind} prototypes")
        quartiles = np.abs(np.quantile(values, [0.25, 0.75]) - values.mean())[:, None]
        bars.bar(number, values.mean(), color=colour, width=0.6)
        bars.errorbar(number, values.mean(), quartiles, color="#333333", capsize=3, linewidth=1)
    for change in numbers["changes"]:
        label = "change detected" if change == numbers["changes"][0] else None
        axes.axvline(change, color=GREY, linewidth=0.8, label=label)
    axes.set(xlabel="images seen", ylabel="squared MMD", ylim=(0, None))
    axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=3)
    axes.grid(axis="y")
    bars.set_xticks([0, 1], ["original", "updated"])
    bars.set_title("mean over batches\n(bars: quartiles)", fontsize=8)
    bars.set_ylabel("squared MMD")
    return label_figure(figure, title, note)


_DRAW = {
    "attention": draw_attention,
    "cost": draw_cost,
    "drift": draw_drift,
    "embeddings": draw_embeddings,
    "gap": draw_gap,
    "overview": draw_overview,
    "parameters": draw_parameters,
    "probes": draw_probes,
    "prototypes": draw_prototypes,
    "stream": draw_curves,
}


def draw_analysis(name: str, numbers: Numbers, path: Path, title: str, note: str = "") -> Path:
    """Draw the numbers of an analysis and write the figure, as PNG, PDF or SVG by its suffix."""
    return write_figure(lambda: _DRAW[name](numbers, title, note), path)
