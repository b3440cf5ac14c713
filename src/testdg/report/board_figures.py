"""The figures of a leaderboard: the score against the time of a batch, and against the score on held-out domains."""

from collections.abc import Sequence
from typing import Any

from testdg.experiments.analyses.cost import Costs
from testdg.experiments.grid import SOURCE
from testdg.experiments.leaderboard import FIRST, HELD_OUT, Board, Ranked
from testdg.report.analyses.scatter import draw_methods
from testdg.report.page.figures import Picture, make_picture
from testdg.report.record import record_note
from testdg.report.style import GREY, look, method_styles, new_figure

_FAR = 1.5
"""A row that is so many times worse than Source would push all others together, and is named instead."""
Point = dict[str, Any]


def board_pictures(board: Board, costs: Costs) -> list[Picture]:
    """Both figures, as far as there are numbers for them."""
    points = [_point(row, costs) for row in board.ranked if FIRST in row.rows]
    near = [point for point in points if board.metric.higher or not _far(point, points)]
    away = [f"{point['name']} ({point['score']:.1f})" for point in points if point not in near]
    left_out = f" Not shown, far above Source: {', '.join(away)}." if away else ""
    with look():
        return [picture for make in (_cost, _tested) if (picture := make(board, near, left_out)) is not None]


def _point(row: Ranked, costs: Costs) -> Point:
    score, tested = row.score(FIRST), row.score(HELD_OUT)
    assert score is not None
    about = {"name": row.name, "method": row.method, "ms": costs.get(row.first.folder.name, {}).get("ms")}
    value = score.value
    return {**about, "score": value.mean, "deviation": value.deviation, "tested": tested and tested.value.mean}


def _far(point: Point, points: Sequence[Point]) -> bool:
    source = next((one["score"] for one in points if one["method"] == SOURCE), None)
    return source is not None and point["score"] > _FAR * source


def _caption(board: Board, what: str, left_out: str) -> str:
    record = board.tables[FIRST].record
    return f"{what}. {record['benchmark']}, {record_note(record)}.{left_out}"


def _cost(board: Board, points: Sequence[Point], left_out: str) -> Picture | None:
    """To the left is cheaper, below is better (of mIoU, above)."""
    known = [point for point in points if point["ms"]]
    if len(known) < 2:
        return None
    figure, grid = new_figure(8.4, 4.8)
    axes = grid[0, 0]
    draw_methods(axes, known, "ms", "time of a batch, ms")
    axes.set_ylabel(f"{FIRST}, {board.metric.title}")
    figure.legend(*axes.get_legend_handles_labels(), loc="outside right center", ncols=1 + len(known) // 24)
    return make_picture(figure, "cost", _caption(board, "Score against the time of a batch", left_out))


def _tested(board: Board, points: Sequence[Point], left_out: str) -> Picture | None:
    """Where a method stands on domains that it never learnt from; dotted lines are Source's."""
    known = [point for point in points if point["tested"] is not None]
    if len(known) < 2:
        return None
    figure, grid = new_figure(8.4, 4.8)
    axes = grid[0, 0]
    for point, (colour, marker) in zip(known, method_styles([one["method"] for one in known]), strict=True):
        axes.plot(point["score"], point["tested"], marker, color=colour, label=point["name"])
        if point["method"] == SOURCE:
            axes.axvline(point["score"], color=GREY, linestyle=":", linewidth=1, zorder=0)
            axes.axhline(point["tested"], color=GREY, linestyle=":", linewidth=1, zorder=0)
    axes.set(xlabel=f"{FIRST}, {board.metric.title}", ylabel=f"{HELD_OUT}, {board.metric.title}")
    axes.margins(0.1)
    axes.grid(True)
    figure.legend(*axes.get_legend_handles_labels(), loc="outside right center", ncols=1 + len(known) // 24)
    caption = "Score on the stream against held-out domains, which the method was only tested on; dotted: Source"
    return make_picture(figure, "held-out", _caption(board, caption, left_out))
