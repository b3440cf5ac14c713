"""The figures of a report: the score over the stream, and a heat map of the gains; as SVG, PDF and PNG."""

from __future__ import annotations

import io
import re
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import numpy as np

from testdg.evaluation import Result
from testdg.evaluation.folder import damaged
from testdg.report.figure import read_events, rolling_scores, visit_spans
from testdg.report.page.groups import Group
from testdg.report.page.sheet import Sheet
from testdg.report.page.sheets import source_gains
from testdg.report.tables import run_names

INK = "#1c1e21"  # in a page it becomes the colour of the text
_SOURCE, _METHOD = "#8a8f98", "#0072b2"
_WIDTH = 9.6  # inches
_LONGEST = 20  # letters of a name, or of a line of it
_SMALL = 7.5  # points of the names of rows, and of numbers
_LEAST = 5.0  # gain in points with the deepest colour, where none is larger
_STYLE: Any = {
    "text.color": INK, "axes.labelcolor": INK, "axes.edgecolor": INK, "xtick.color": INK, "ytick.color": INK,
    "font.size": 9, "text.parse_math": False, "svg.fonttype": "none", "svg.hashsalt": "testdg", "axes.linewidth": 0.6,
}  # fmt: skip


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


def group_pictures(group: Group, sheets: Sequence[Sheet], name: str) -> list[Picture]:
    """The figures of a group: one, both or none, as far as there are events and Source."""
    import matplotlib

    matplotlib.use("Agg")
    with matplotlib.rc_context(_STYLE):
        found = [_stream_picture(group, f"{name}-stream"), _heat_picture(group, sheets[1], f"{name}-gains")]
    return [picture for picture in found if picture is not None]


def _picture(figure: Any, name: str, caption: str) -> Picture:
    from matplotlib import pyplot as plt

    dates = {"svg": {"Date": None}, "pdf": {"CreationDate": None}, "png": {}}
    files = {}
    for kind, about in dates.items():
        file = io.BytesIO()
        figure.savefig(file, format=kind, metadata=about, dpi=200, transparent=kind != "png")
        files[kind] = file.getvalue()
    plt.close(figure)
    return Picture(name, caption, files)


# The score over the stream


@dataclass(frozen=True)
class _Curve:
    events: list[dict[str, Any]]
    ends: list[int]
    """Images seen after each batch."""
    scores: list[float]
    changes: list[int]


def _stream_picture(group: Group, name: str) -> Picture | None:
    """A panel for each row, Source behind it in grey, changes that the method detected as triangles."""
    from matplotlib import pyplot as plt

    first = group.streams[0]
    shown = [(row.name, row.method, _on(row.results, first)) for row in group.table.rows]
    curves = [(title, method, _read(result)) for title, method, result in shown if result is not None]
    known = [(title, method, curve) for title, method, curve in curves if curve is not None]
    if not known:
        return None
    source = next((curve for _, method, curve in known if method == "source"), None)
    panels = [(title, curve) for title, _, curve in known if curve is not source] or [(known[0][0], known[0][2])]
    size = (_WIDTH, 0.42 + len(panels) * min(1.05, max(0.65, 5 / len(panels))))
    figure, grid = plt.subplots(len(panels), 1, figsize=size, sharex=True, sharey=True, squeeze=False)
    for axes, (title, curve) in zip(grid[:, 0], panels, strict=True):
        _draw_panel(axes, title, curve, source)
    _finish(figure, list(grid[:, 0]), panels[0][1], first.metric.title)
    return _picture(figure, name, _stream_caption(group, first, panels, source is not None))


def _on(results: Sequence[Result], stream: Result) -> Result | None:
    """The run with the lowest seed on a stream."""
    same = [r for r in results if all(r.protocol[key] == stream.protocol[key] for key in ("domains", "held_out"))]
    return min(same, key=lambda result: int(result.protocol["seed"]), default=None)


def _read(result: Result) -> _Curve | None:
    """What a run's events tell; None where they were deleted."""
    if not (result.folder / "events.jsonl").exists():
        return None
    events = read_events(result.folder)
    try:
        ends = list(accumulate(int(event["images"]) for event in events))
        scores = rolling_scores(events, _window(events), result.protocol.get("task", "classification"))
        changes = [end for end, event in zip(ends, events, strict=True) if event.get("change") is True]
    except (KeyError, TypeError, ValueError, AttributeError, ZeroDivisionError) as error:
        raise damaged(result.folder, "events.jsonl", error) from error
    return _Curve(events, ends, scores, changes) if events else None


def _window(events: Sequence[Any]) -> int:
    return max(3, len(events) // 75)


def _draw_panel(axes: Any, title: str, curve: _Curve, source: _Curve | None) -> None:
    starts = [0, *curve.ends]
    for count, (first, stop) in enumerate(visit_spans(curve.events)):
        axes.axvspan(starts[first], starts[stop], color=INK, alpha=0.05 * (count % 2), linewidth=0)
    if source is not None and source is not curve:
        axes.plot(source.ends, source.scores, color=_SOURCE, linewidth=1)
    axes.plot(curve.ends, curve.scores, color=_METHOD, linewidth=1.4)
    floor = np.zeros(len(curve.changes))
    axes.plot(curve.changes, floor, "^", color="#d55e00", markersize=5, clip_on=False, zorder=5)
    axes.set_ylabel(_wrapped(title), rotation=0, ha="right", va="center", fontsize=_SMALL)
    axes.yaxis.set_label_coords(-0.055, 0.5)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(length=0, labelsize=_SMALL)
    axes.grid(axis="y", color=INK, alpha=0.12, linewidth=0.6)


def _finish(figure: Any, rows: Sequence[Any], curve: _Curve, measured: str) -> None:
    """Names of the domains above the first panel, as many as there is room for, and titles of the axes."""
    starts, written, labels = [0, *curve.ends], -np.inf, []
    for first, stop in visit_spans(curve.events, 3):
        middle = (starts[first] + starts[stop]) / 2
        if middle - written >= curve.ends[-1] / 30:
            labels.append(_label(curve.events[first]))
            place = {"transform": rows[0].get_xaxis_transform(), "rotation": 35, "fontsize": 8, "ha": "left"}
            rows[0].text(middle, 1.04, labels[-1], **place)
            written = middle
    rows[-1].set(xlabel="images seen", xlim=(0, curve.ends[-1]))
    rows[-1].set_ylim(0, min(100, rows[-1].get_ylim()[1] * 1.02))
    rows[0].text(-0.008, 1.12, measured, transform=rows[0].transAxes, ha="right", fontsize=8)
    _set_margins(figure, labels, 0.42)


def _label(event: dict[str, Any]) -> str:
    return _short(str(event["domain"]).replace("_", " ")) + (" *" if event["phase"] == "held_out" else "")


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


def _stream_caption(group: Group, stream: Result, panels: Sequence[tuple[str, _Curve]], source: bool) -> str:
    metric, window = stream.metric, _window(panels[0][1].events)
    parts = [f"Over the stream: {metric.name} of the last {window} batches of the same domain (blue)"]
    parts += ["Source in grey"] if source else []
    parts += ["triangles: changes that the method detected"] if any(curve.changes for _, curve in panels) else []
    name = run_names([[result] for result in group.streams])[0]
    if len(group.streams) > 1:
        parts.append(f"the stream that leaves out {name}" if group.leaves_out else name)
    parts += ["* only tested"] if stream.held_out else []
    missing = len({row.name for row in group.table.rows}) - len(panels) - source
    parts += [f"{missing} rows have no events"] if missing > 0 else []
    return f"{'; '.join(parts)}. The run with the lowest seed of each row."


# The gains


def _heat_picture(group: Group, sheet: Sheet, name: str) -> Picture | None:
    """A row for each method, a column for each domain: how much better than Source."""
    from matplotlib import pyplot as plt

    gains = source_gains(group, sheet)
    places = [place for place, column in enumerate(sheet.columns) if not column.signed]
    if not gains or not places:
        return None
    columns = [sheet.columns[place] for place in places]
    values = np.array([[np.nan if row[p] is None else row[p] for p in places] for row in gains.values()], float)
    names = [_wrapped(name) for name in gains]
    height = max(0.34, 0.06 + 0.13 * max(1 + name.count("\n") for name in names))  # inches of a row
    figure, axes = plt.subplots(figsize=(_WIDTH, 0.08 + height * len(values)))
    limit = float(np.nanmax([_LEAST, *np.abs(values).flat]))
    axes.imshow(values, cmap="RdBu", vmin=-limit, vmax=limit, aspect="auto")
    titles = [" ".join(filter(None, (_short(column.title), _number(column.over)))) for column in columns]
    axes.set_xticks(range(len(places)), titles, rotation=35, ha="left", fontsize=8)
    axes.set_yticks(range(len(gains)), names, fontsize=_SMALL)
    axes.tick_params(length=0, top=False, labeltop=True, bottom=False, labelbottom=False)
    axes.spines[:].set_visible(False)
    for (row, column), value in np.ndenumerate(values):
        colour = "#ffffff" if abs(value) > 0.6 * limit else "#222222"
        text = "" if np.isnan(value) else f"{value:+z.1f}"
        axes.text(column, row, text, ha="center", va="center", fontsize=_SMALL, color=colour)
    _set_margins(figure, titles, 0.08)
    what = f"Gain in {group.table.rows[0].metric.title} over Source"
    caption = f"{what}, {sheet.title.lower()} from left to right: blue is better, red is worse."
    return _picture(figure, name, caption)


def _number(over: str) -> str:
    return over.removeprefix("round ") and f"({over.removeprefix('round ')})"
