"""The figures of a report: the score over the stream, and a heat map of the gains; as SVG, PDF and PNG."""

import io
import re
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from testdg.errors import UserError
from testdg.report.analyses.stream import name_visits, shade_visits
from testdg.report.page.groups import Group
from testdg.report.page.sheets import source_gains
from testdg.report.style import GREY, INK, PALETTE, look, new_figure, save_figure
from testdg.report.table import Table
from testdg.runs import Result
from testdg.runs.events import rolling_scores
from testdg.runs.folder import read_events
from testdg.spec import SOURCE
from testdg.studies.analyses.stream import stream_numbers
from testdg.studies.summary import run_names

_METHOD = PALETTE[0].lower()
_WIDTH = 9.6  # inches
_LONGEST = 20  # letters of a name, or of a line of it
_SMALL = 7.5  # points of the names of rows, and of numbers
_LEAST = 5.0  # gain in points with the deepest colour, where none is larger


@dataclass(frozen=True)
class Picture:
    """A figure in several formats."""

    name: str
    caption: str
    files: dict[str, bytes]

    def svg(self) -> str:
        """The figure for a page: it takes the colour of the text around it, and keeps its ids to itself."""
        text = self.files["svg"].decode("utf-8")
        text = text[text.index("<svg") :].replace(INK, "currentColor").replace(_METHOD, "var(--curve)")
        text = re.sub(r'(id="|href="#|url\(#)', rf"\g<1>{self.name}-", text)
        return re.sub(r'<svg ([^>]*?)(?:width|height)="[^"]*" ([^>]*?)height="[^"]*"', r"<svg \1\2", text, count=1)


def group_pictures(group: Group, sheets: Sequence[Table], name: str) -> list[Picture]:
    """The figures of a group: one, both or none, as far as there are events and Source."""
    with look():
        found = [_stream_picture(group, f"{name}-stream"), _heat_picture(group, sheets[1], f"{name}-gains")]
    return [picture for picture in found if picture is not None]


def make_picture(figure: Any, name: str, caption: str) -> Picture:
    """A figure in all formats."""
    files = {}
    for kind in ("svg", "pdf", "png"):
        file = io.BytesIO()
        save_figure(figure, file, kind, dpi=200, transparent=kind != "png")
        files[kind] = file.getvalue()
    return Picture(name, caption, files)


def picture_files(pictures: Iterable[Picture]) -> dict[str, bytes]:
    """Every figure in every format, by the name of its file."""
    return {f"figures/{one.name}.{kind}": data for one in pictures for kind, data in one.files.items()}


# The score over the stream


def _stream_picture(group: Group, name: str) -> Picture | None:
    """A panel for each row, Source behind it in grey, changes that the method detected as triangles."""
    first = group.table.streams[0]
    same = {row.name: [one for one in row.results if one.stream == first.stream] for row in group.table.rows}
    lowest = {title: min(runs, key=lambda one: int(one.record["seed"])) for title, runs in same.items() if runs}
    known = {title: [result] for title, result in lowest.items() if _has_events(result)}
    if not known:
        return None
    numbers = stream_numbers(known)
    source = next((row for row in numbers["rows"] if row["method"] == SOURCE), None)
    panels = [row for row in numbers["rows"] if row is not source] or numbers["rows"]
    height = 0.42 + len(panels) * min(1.05, max(0.65, 5 / len(panels)))
    figure, grid = new_figure(_WIDTH, height, len(panels), layout=None, sharex=True, sharey=True)
    for axes, row in zip(grid[:, 0], panels, strict=True):
        _draw_panel(axes, row, source, numbers)
    _finish(figure, list(grid[:, 0]), numbers)
    return make_picture(figure, name, _stream_caption(group, first, numbers, len(group.table.rows) - len(known)))


def _has_events(result: Result) -> bool:
    """Whether the events of a run can be used; a page can do without them."""
    try:
        return bool(rolling_scores(read_events(result.folder), result.score, 1))
    except (UserError, LookupError, TypeError, ValueError, AttributeError, ZeroDivisionError):
        return False


def _draw_panel(axes: Any, row: dict[str, Any], source: dict[str, Any] | None, numbers: dict[str, Any]) -> None:
    ends = numbers["positions"]
    shade_visits(axes, numbers["visits"])
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


def _noticed(row: dict[str, Any]) -> list[int]:
    """Batches at which a change was detected."""
    (found,) = row["detections"]
    return found["batches"] if found else []


def _finish(figure: Any, rows: Sequence[Any], numbers: dict[str, Any]) -> None:
    """Names of the domains above the first panel, and titles of the axes."""
    labels = name_visits(rows[0], numbers["visits"], _short)
    rows[-1].set(xlabel="images seen", xlim=(0, numbers["positions"][-1]))
    rows[-1].set_ylim(0, min(100, rows[-1].get_ylim()[1] * 1.02))
    title = {"transform": rows[0].transAxes, "ha": "right", "fontsize": 8}
    rows[0].text(-0.008, 1.12, numbers["metric"]["title"], **title)
    _set_margins(figure, labels, 0.42)


def _short(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"


def _wrapped(name: str) -> str:
    return "\n".join(textwrap.wrap(name, _LONGEST, max_lines=3, placeholder=" …"))


def _set_margins(figure: Any, labels: Sequence[str], bottom: float) -> None:
    """Leave room for slanted labels at the top, and as much as was asked for, in inches, at the bottom."""
    top = 0.2 + 0.042 * max(map(len, labels))
    figure.set_figheight(figure.get_figheight() + top)
    height = figure.get_figheight()
    figure.subplots_adjust(left=0.17, right=0.91, top=1 - top / height, bottom=bottom / height, hspace=0.28)


def _stream_caption(group: Group, stream: Result, numbers: dict[str, Any], missing: int) -> str:
    rows, last = numbers["rows"], f"the last {numbers['window']} batches of the same domain"
    parts = [f"Over the stream: {stream.metric.name} of {last} (orange)"]
    parts += ["Source in grey"] if any(row["method"] == SOURCE for row in rows) else []
    parts += ["triangles: changes that the method detected"] if any(map(_noticed, rows)) else []
    if len(group.table.streams) > 1:
        name = run_names([[result] for result in group.table.streams])[0]
        parts.append(f"the stream that leaves out {name}" if group.table.leaves_out else name)
    parts += ["* only tested"] if stream.held_out else []
    parts += [f"{missing} rows have no events"] if missing else []
    return f"{'; '.join(parts)}. The run with the lowest seed of each row."


# The gains


def _heat_picture(group: Group, sheet: Table, name: str) -> Picture | None:
    """A row for each method, a column for each domain: how much better than Source."""
    gains = source_gains(group, sheet)
    places = [place for place, column in enumerate(sheet.columns) if not column.signed]
    if not gains or not places:
        return None
    columns = [sheet.columns[place] for place in places]
    values = np.array([[np.nan if row[p] is None else row[p] for p in places] for row in gains.values()], float)
    names = [_wrapped(name) for name in gains]
    height = max(0.34, 0.06 + 0.13 * max(1 + name.count("\n") for name in names))  # inches of a row
    figure, grid = new_figure(_WIDTH, 0.08 + height * len(values), layout=None)
    axes = grid[0, 0]
    limit = float(np.nanmax([_LEAST, *np.abs(values).flat]))
    axes.imshow(values, cmap="RdBu", vmin=-limit, vmax=limit, aspect="auto")
    titles = [f"{_short(c.title)} ({c.over.removeprefix('round ')})" if c.over else _short(c.title) for c in columns]
    axes.set_xticks(range(len(places)), titles, rotation=35, ha="left", fontsize=8)
    axes.set_yticks(range(len(gains)), names, fontsize=_SMALL)
    axes.tick_params(length=0, top=False, labeltop=True, bottom=False, labelbottom=False)
    axes.spines[:].set_visible(False)
    for (row, column), value in np.ndenumerate(values):
        colour = "#ffffff" if abs(value) > 0.6 * limit else "#222222"
        text = "" if np.isnan(value) else f"{value:+z.1f}"
        axes.text(column, row, text, ha="center", va="center", fontsize=_SMALL, color=colour)
    _set_margins(figure, titles, 0.08)
    what = f"Gain over Source ({group.table.metric.title})"
    caption = f"{what}, {sheet.title.lower()} from left to right: blue is better, red is worse."
    return make_picture(figure, name, caption)
