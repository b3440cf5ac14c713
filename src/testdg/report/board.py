"""A leaderboard as a table, as figures, as Markdown, and as a page that sorts itself."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from markupsafe import Markup

from testdg.report.analyses import draw_methods
from testdg.report.bench import SPREAD, Layout, means_table, table_record
from testdg.report.figures import FigureFiles, figure_files
from testdg.report.record import reconstruction_note, record_note
from testdg.report.safe import render
from testdg.report.style import GREY, look, method_styles, new_figure
from testdg.report.table import Cell, Field, Table, TableColumn, tabulate
from testdg.spec import SOURCE
from testdg.studies.analyses.cost import Costs
from testdg.studies.leaderboard import FIRST, HELD_OUT, Board, Ranked

if TYPE_CHECKING:
    from matplotlib.axes import Axes

TITLE = "Leaderboard"
_FAR = 1.5
"""A row that is so many times worse than Source would push all others together, and is named instead."""
_CAPTIONS = {
    "cost": "Score against the time of a batch",
    "held-out": "Score on the stream against held-out domains, which the method was only tested on; dotted: Source",
}
Point = dict[str, Any]


def board_table(board: Board, costs: Costs) -> Table:
    """A row for each method: its score on every stream, the worst case, and what it costs."""
    metric = board.metric

    def worst(row: Ranked) -> tuple[float | None, str]:
        return row.worst(board.streams) or (None, "")

    def cost(row: Ranked) -> Mapping[str, Any]:
        return costs.get(row.first.folder.name, {})

    mean = TableColumn.of(metric, "mean", 1, summary=True)
    fields: list[Field[Ranked]] = [(mean, lambda row: Cell(row.mean(board.streams)))]
    for name in (*board.streams, *board.others):
        fields.append((TableColumn.of(metric, name, 1), partial(_score_cell, name)))
    fields.append((TableColumn.gains(metric, "worst case", 1), lambda row: Cell(worst(row)[0])))
    fields.append((TableColumn("on"), lambda row: Cell(text=worst(row)[1])))
    if costs:
        fields.append((TableColumn("ms", False), lambda row: Cell(cost(row).get("ms"))))
        fields.append((TableColumn("MiB", False, 0), lambda row: Cell(cost(row).get("memory_mib"))))
        fields.append((TableColumn("parameters", digits=0), lambda row: Cell(cost(row).get("parameters"))))
        fields.append((TableColumn("source images"), lambda row: Cell(text=source_words(cost(row)))))
    return tabulate(TITLE, _board_note(board, costs), fields, [(row.name, row) for row in board.ranked])


def _score_cell(stream: str, row: Ranked) -> Cell:
    score = row.score(stream)
    return Cell.of(score.value) if score else Cell()


def _board_note(board: Board, costs: Costs) -> str:
    parts = [f"{board.metric.title}, {SPREAD}"]
    if board.streams:
        parts.append(f"mean: over the streams that all are run on, {', '.join(board.streams)}")
        parts.append("worst case: the smallest gain over Source on any of these, a loss below zero, and on which")
    for measured in list(costs.values())[:1]:
        parts.append(f"ms, MiB: of a batch of {measured['batch_size']} on {measured['device']}, alone")
    task = next(iter(board.tables.values())).record["task"]
    parts.append(reconstruction_note([row.method for row in board.ranked], task))
    return "; ".join(filter(None, parts)) + "."


def source_words(cost: Mapping[str, Any]) -> str:
    """Which source images a method needs, in a word or two."""
    if not cost:
        return ""
    count = cost["source_images"]
    return f"{count}{', labelled' if cost['source_labels'] else ''}" if count else "none"


def board_figures(board: Board, costs: Costs) -> list[FigureFiles]:
    """The score on the first stream against the time of a batch, and against held-out domains, where both are known."""
    if FIRST not in board.tables:
        return []
    points = [_point(row, costs) for row in board.ranked if FIRST in row.rows]
    source = next((point["score"] for point in points if point["method"] == SOURCE), math.inf)
    near = [point for point in points if board.metric.higher or point["score"] <= _FAR * source]
    away = [f"{point['name']} ({point['score']:.1f})" for point in points if point not in near]
    left_out = f" Not shown, far above Source: {', '.join(away)}." if away else ""
    record, figures = board.tables[FIRST].record, []
    for name, key, draw in (("cost", "ms", _draw_cost), ("held-out", "tested", _draw_tested)):
        known = [point for point in near if point[key] is not None]
        if len(known) > 1:
            with look():
                figure, grid = new_figure(8.4, 4.8)
                draw(grid[0, 0], known, f"{FIRST}, {board.metric.title}")
                handles, columns = grid[0, 0].get_legend_handles_labels(), 1 + len(known) // 24
                figure.legend(*handles, loc="outside right center", ncols=columns)
                caption = f"{_CAPTIONS[name]}. {record['benchmark']}, {record_note(record)}.{left_out}"
                figures.append(figure_files(figure, name, caption))
    return figures


def _point(row: Ranked, costs: Costs) -> Point:
    first, tested = row.rows[FIRST].adapted.value, row.score(HELD_OUT)
    return {
        "name": row.name,
        "method": row.method,
        "ms": costs.get(row.first.folder.name, {}).get("ms"),
        "score": first.mean,
        "deviation": first.deviation,
        "tested": tested and tested.value.mean,
    }


def _draw_cost(axes: Axes, points: Sequence[Point], label: str) -> None:
    """To the left is cheaper, below is better (of mIoU, above)."""
    draw_methods(axes, points, "ms", "time of a batch, ms")
    axes.set_ylabel(label)


def _draw_tested(axes: Axes, points: Sequence[Point], label: str) -> None:
    """The score on domains that a method never learnt from, against the stream; dotted lines are Source's."""
    for point, (colour, marker) in zip(points, method_styles([one["method"] for one in points]), strict=True):
        axes.plot(point["score"], point["tested"], marker, color=colour, label=point["name"])
        if point["method"] == SOURCE:
            axes.axvline(point["score"], color=GREY, linestyle=":", linewidth=1, zorder=0)
            axes.axhline(point["tested"], color=GREY, linestyle=":", linewidth=1, zorder=0)
    axes.set(xlabel=label, ylabel=label.replace(FIRST, HELD_OUT, 1))
    axes.margins(0.1)
    axes.grid(True)


def board_markdown(board: Board, costs: Costs, figures: Sequence[FigureFiles], folder: str = "figures") -> str:
    """The leaderboard as a document: the table, the figures, then every stream with its record and intervals."""
    sections = Layout().sections(list(board.tables.values()))
    return render("board.md", sections=sections, folder=Markup(folder), **_content(board, costs, figures))


def board_page(board: Board, costs: Costs, figures: Sequence[FigureFiles]) -> str:
    """The whole page, with every stream below the table."""
    streams = [(table.protocol, means_table(table), table_record(table)) for table in board.tables.values()]
    return render("board.html", streams=streams, **_content(board, costs, figures))


def _content(board: Board, costs: Costs, figures: Sequence[FigureFiles]) -> dict[str, object]:
    return {"title": TITLE, "outcome": outcome(board), "sheet": board_table(board, costs), "figures": figures}


def outcome(board: Board) -> str:
    """Who is best in the mean, and who in the worst case."""
    found = [(row.name, row.mean(board.streams), row.worst(board.streams)) for row in board.ranked]
    whole = [(name, mean, worst) for name, mean, worst in found if mean is not None and worst is not None]
    if not whole:
        return f"{len(found)} rows; no method was run on all streams yet."
    (best, mean, _), (safest, _, worst) = whole[0], max(whole, key=lambda one: one[2][0])
    best_mean = f"Of {len(whole)} methods on all streams, {best} has the best mean ({mean:.2f})"
    return f"{best_mean}; {safest} has the best worst case ({worst[0]:+z.2f} against Source, {worst[1]})."
