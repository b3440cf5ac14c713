"""Figures of runs: the score over the stream, for `testdg run` and for a report, and a heat map of the gains."""

from __future__ import annotations

import io
import re
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from testdg.errors import UserError
from testdg.report.style import (
    GREY,
    INK,
    PALETTE,
    label_figure,
    look,
    method_styles,
    new_figure,
    save_figure,
    shortened,
    write_figure,
)
from testdg.report.table import Table
from testdg.runs import Result
from testdg.runs.events import rolling_scores
from testdg.runs.folder import read_events
from testdg.spec import SOURCE
from testdg.studies import BenchTable
from testdg.studies.analyses.stream import stream_numbers
from testdg.studies.analyses.subject import Numbers
from testdg.studies.summary import run_names

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Visits = Sequence[Numbers]
_MOST_LABELS = 30  # names of domains that fit above the axes
_METHOD = PALETTE[0].lower()
_WIDTH = 9.6  # inches
_LONGEST = 20  # letters of a name, or of a line of it
_SMALL = 7.5  # points of the names of rows, and of numbers
_LEAST = 5.0  # gain in points with the deepest colour, where none is larger


# The stream


def draw_stream(path: Path, runs: Mapping[str, Result], title: str, note: str = "") -> Path:
    """Draw the score of some runs over their stream."""
    numbers = stream_numbers({name: [result] for name, result in runs.items()})
    return write_figure(lambda: draw_curves(numbers, title, note), path)


def draw_curves(numbers: Numbers, title: str, note: str) -> Figure:
    """Curves over shaded visits; a strip with a mark for every alarm, and lines where domains really change."""
    rows, metric, visits = numbers["rows"], numbers["metric"], numbers["visits"]
    noticed = [row for row in rows if any(row["detections"])]
    strip = 0.35 + 0.22 * sum(len(row["detections"]) for row in noticed)
    heights = [4.0, strip] if noticed else [4.0]
    figure, grid = new_figure(10, sum(heights) + 0.6, len(heights), sharex=True, height_ratios=heights)
    axes, ends = grid[0, 0], numbers["positions"]
    styles = method_styles([row["method"] for row in rows])
    colours = {row["name"]: colour for row, (colour, _) in zip(rows, styles, strict=True)}
    for row in rows:
        seeds = len(row["detections"])
        label = f"{row['name']}: {row['mean']:.1f} {metric['unit']}{f', {seeds} seeds' if seeds > 1 else ''}"
        curve, low, high = (np.array(row[key], float) for key in ("curve", "low", "high"))
        axes.plot(ends, curve, color=colours[row["name"]], linewidth=1.5, label=textwrap.fill(label, 26))
        if seeds > 1:
            axes.fill_between(ends, low, high, color=colours[row["name"]], alpha=0.2, linewidth=0)
    shade_visits(axes, visits)
    name_visits(axes, visits)
    axes.set_ylabel(f"{metric['title']} (last {numbers['window']} batches of the domain)")
    axes.set(xlim=(0, ends[-1]), ylim=(0, min(100, 1.05 * axes.dataLim.y1)))
    axes.grid(axis="y")
    several = any(len(row["seeds"]) > 1 for row in rows)
    heading = "mean (band: lowest\nto highest seed)" if several else "mean"
    axes.legend(loc="upper left", bbox_to_anchor=(1.01, 1), title=heading, title_fontsize=8, alignment="left")
    if noticed:
        _draw_alarms(grid[1, 0], noticed, numbers, colours)
    darker = " (darker: more severe)" if len({visit["severity"] for visit in visits}) > 1 else ""
    grid[-1, 0].set_xlabel(f"images seen{darker}")
    return label_figure(figure, title, note)


def shade_visits(axes: Axes, visits: Visits) -> None:
    """Shade every other visit, or each by its severity."""
    severities = len({visit["severity"] for visit in visits}) > 1
    for count, visit in enumerate(visits):
        alpha = 0.025 * (visit["severity"] or 0) if severities else 0.05 * (count % 2)
        axes.axvspan(visit["start"], visit["stop"], color=INK, alpha=alpha, linewidth=0)


def name_visits(axes: Axes, visits: Visits, longest: int = 99) -> list[str]:
    """Write domains above the axes, or rounds where there are many, as far as there is room; returns the labels.

    A domain has its round where there are several, and a star where it only tests.
    """
    rounds = len({visit["round"] for visit in visits})
    stays = _first_and_last(visits, "round", "phase", "domain")
    many = len(stays) > _MOST_LABELS and rounds > 1
    lines = many or len({visit["severity"] for visit in visits}) > 1
    labels, written = [], -np.inf
    for first, last in _first_and_last(visits, "round") if many else stays:
        middle = (first["start"] + last["stop"]) / 2
        if first["start"] and lines:
            axes.axvline(first["start"], color=GREY, linewidth=0.8)
        if middle - written < visits[-1]["stop"] / _MOST_LABELS:
            continue
        label = shortened(str(first["domain"]).replace("_", " "), longest)
        if many:
            label = f"round {first['round']}"
        elif first["phase"] == "held_out":
            label += " *"
        elif rounds > 1:
            label += f" ({first['round']})"
        axes.text(middle, 1.02, label, transform=axes.get_xaxis_transform(), rotation=35, fontsize=8, ha="left")
        labels.append(label)
        written = middle
    return labels


def _first_and_last(visits: Visits, *keys: str) -> list[tuple[Numbers, Numbers]]:
    """The first and the last of the consecutive visits that agree in some fields."""
    groups = [list(group) for _, group in groupby(visits, itemgetter(*keys))]
    return [(group[0], group[-1]) for group in groups]


def _draw_alarms(axes: Axes, rows: Sequence[Numbers], numbers: Numbers, colours: dict[str, str]) -> None:
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


# Figures of a report, in several formats


@dataclass(frozen=True)
class FigureFiles:
    """A figure in several formats."""

    name: str
    caption: str
    files: dict[str, bytes]

    def svg(self) -> str:
        """The figure for a page: it takes the colour of the text around it, and its ids start with its name."""
        text = self.files["svg"].decode("utf-8")
        text = text[text.index("<svg") :].replace(INK, "currentColor").replace(_METHOD, "var(--curve)")
        text = re.sub(r'(id="|href="#|url\(#)', rf"\g<1>{self.name}-", text)
        return re.sub(r'<svg ([^>]*?)(?:width|height)="[^"]*" ([^>]*?)height="[^"]*"', r"<svg \1\2", text, count=1)


def figure_files(figure: Figure, name: str, caption: str) -> FigureFiles:
    """A figure in all formats."""
    files = {}
    for kind in ("svg", "pdf", "png"):
        file = io.BytesIO()
        save_figure(figure, file, kind, dpi=200, transparent=kind != "png")
        files[kind] = file.getvalue()
    return FigureFiles(name, caption, files)


def files_by_name(figures: Iterable[FigureFiles]) -> dict[str, bytes]:
    """Every figure in every format, by the name of its file."""
    return {f"figures/{one.name}.{kind}": data for one in figures for kind, data in one.files.items()}


def group_figures(table: BenchTable, domains: Table, name: str) -> list[FigureFiles]:
    """The figures of a group: one, both or none, as far as there are events and Source."""
    with look():
        found = [_stream_figure(table, f"{name}-stream"), _gain_figure(table, domains, f"{name}-gains")]
    return [figure for figure in found if figure is not None]


def _stream_figure(table: BenchTable, name: str) -> FigureFiles | None:
    """A panel for each row, with Source in grey; triangles are changes that the method detected."""
    first = table.streams[0]
    same = {row.name: [one for one in row.results if one.stream == first.stream] for row in table.rows}
    lowest = {title: min(runs, key=lambda one: int(one.record["seed"])) for title, runs in same.items() if runs}
    known = {title: [result] for title, result in lowest.items() if _has_events(result)}
    if not known:
        return None
    numbers = stream_numbers(known)
    ends, visits = numbers["positions"], numbers["visits"]
    source = next((row for row in numbers["rows"] if row["method"] == SOURCE), None)
    panels = [row for row in numbers["rows"] if row is not source] or numbers["rows"]
    height = 0.42 + len(panels) * min(1.05, max(0.65, 5 / len(panels)))
    figure, grid = new_figure(_WIDTH, height, len(panels), layout=None, sharex=True, sharey=True)
    for axes, row in zip(grid[:, 0], panels, strict=True):
        shade_visits(axes, visits)
        if source is not None and source is not row:
            axes.plot(ends, np.array(source["curve"], float), color=GREY, linewidth=1)
        axes.plot(ends, np.array(row["curve"], float), color=_METHOD, linewidth=1.4)
        changes = [[0, *ends][batch] for batch in _noticed(row)]
        axes.plot(changes, np.zeros(len(changes)), "^", color=PALETTE[1], markersize=5, clip_on=False, zorder=5)
        axes.set_ylabel(_wrapped(row["name"]), rotation=0, ha="right", va="center", fontsize=_SMALL)
        axes.yaxis.set_label_coords(-0.055, 0.5)
        axes.spines["left"].set_visible(False)
        axes.tick_params(length=0, labelsize=_SMALL)
        axes.grid(axis="y")
    top, bottom = grid[0, 0], grid[-1, 0]
    labels = name_visits(top, visits, _LONGEST)
    bottom.set(xlabel="images seen", xlim=(0, ends[-1]))
    bottom.set_ylim(0, min(100, bottom.get_ylim()[1] * 1.02))
    top.text(-0.008, 1.12, numbers["metric"]["title"], transform=top.transAxes, ha="right", fontsize=8)
    _set_margins(figure, labels, 0.42)
    return figure_files(figure, name, _stream_caption(table, first, numbers, len(table.rows) - len(known)))


def _has_events(result: Result) -> bool:
    """Whether the events of a run can be used; a page can do without them."""
    try:
        return bool(rolling_scores(read_events(result.folder), result.score, 1))
    except (UserError, LookupError, TypeError, ValueError, AttributeError, ZeroDivisionError):
        return False


def _noticed(row: Numbers) -> list[int]:
    """Batches at which a change was detected."""
    (found,) = row["detections"]
    return found["batches"] if found else []


def _wrapped(name: str) -> str:
    return "\n".join(textwrap.wrap(name, _LONGEST, max_lines=3, placeholder=" …"))


def _set_margins(figure: Figure, labels: Sequence[str], bottom: float) -> None:
    """Leave room for slanted labels at the top, and for `bottom` inches below."""
    top = 0.2 + 0.042 * max(map(len, labels))
    figure.set_figheight(figure.get_figheight() + top)
    height = figure.get_figheight()
    figure.subplots_adjust(left=0.17, right=0.91, top=1 - top / height, bottom=bottom / height, hspace=0.28)


def _stream_caption(table: BenchTable, stream: Result, numbers: Numbers, missing: int) -> str:
    rows, last = numbers["rows"], f"the last {numbers['window']} batches of the same domain"
    parts = [f"Over the stream: {stream.metric.name} of {last} (orange)"]
    parts += ["Source in grey"] if any(row["method"] == SOURCE for row in rows) else []
    parts += ["triangles: changes that the method detected"] if any(map(_noticed, rows)) else []
    if len(table.streams) > 1:
        name = run_names([[result] for result in table.streams])[0]
        parts.append(f"the stream that leaves out {name}" if table.leaves_out else name)
    parts += ["*: held out"] if stream.held_out else []
    parts += [f"rows without events: {missing}"] if missing else []
    return f"{'; '.join(parts)}. The run with the lowest seed of each row."


def _gain_figure(table: BenchTable, sheet: Table, name: str) -> FigureFiles | None:
    """A heat map: a row for each method, a column for each domain, and how much better than Source."""
    columns = [column for column in sheet.columns if not column.signed]
    gains = source_gains(table, sheet)
    if not gains or not columns:
        return None
    values, names = np.array(list(gains.values())), [_wrapped(name) for name in gains]
    height = max(0.34, 0.06 + 0.13 * max(1 + name.count("\n") for name in names))  # inches of a row
    figure, grid = new_figure(_WIDTH, 0.08 + height * len(values), layout=None)
    axes = grid[0, 0]
    limit = float(np.nanmax([_LEAST, *np.abs(values).flat]))
    axes.imshow(values, cmap="RdBu", vmin=-limit, vmax=limit, aspect="auto")
    titles = []
    for column in columns:
        title = shortened(column.title, _LONGEST)
        titles.append(f"{title} ({column.over.removeprefix('round ')})" if column.over else title)
    axes.set_xticks(range(len(titles)), titles, rotation=35, ha="left", fontsize=8)
    axes.set_yticks(range(len(names)), names, fontsize=_SMALL)
    axes.tick_params(length=0, top=False, labeltop=True, bottom=False, labelbottom=False)
    axes.spines[:].set_visible(False)
    for (row, place), value in np.ndenumerate(values):
        colour = "#ffffff" if abs(value) > 0.6 * limit else "#222222"
        text = "" if np.isnan(value) else f"{value:+z.1f}"
        axes.text(place, row, text, ha="center", va="center", fontsize=_SMALL, color=colour)
    _set_margins(figure, titles, 0.08)
    what = f"Gain over Source ({table.metric.title})"
    caption = f"{what}, {sheet.title.lower()} from left to right: blue is better, red is worse."
    return figure_files(figure, name, caption)


def source_gains(table: BenchTable, sheet: Table) -> dict[str, NDArray[np.float64]]:
    """How much better the numbers of each row are than Source's; NaN where one is not known, empty without Source."""
    sources = [row.name for row in table.rows if row.method == SOURCE]
    places = [place for place, column in enumerate(sheet.columns) if not column.signed]
    signs = [1 if sheet.columns[place].higher else -1 for place in places]
    found = {name: np.array([cells[place].value for place in places], float) for name, cells in sheet.rows}
    if not sources:
        return {}
    return {name: (values - found[sources[0]]) * signs for name, values in found.items() if name not in sources}
