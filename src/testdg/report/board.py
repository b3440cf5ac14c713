"""A leaderboard as a table, as figures, as Markdown, and as a page that sorts itself."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from markupsafe import Markup

from testdg.report.analyses import draw_methods
from testdg.report.bench import SPREAD, Layout, means_table, table_record
from testdg.report.figures import Picture, make_picture
from testdg.report.record import reconstruction_note, record_note
from testdg.report.safe import render
from testdg.report.style import GREY, look, method_styles, new_figure
from testdg.report.table import Column, Entry, Table
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
    metric, streams = board.metric, (*board.streams, *board.others)
    columns = [Column.of(metric, "mean", 1, summary=True), *(Column.of(metric, name, 1) for name in streams)]
    columns += [Column.gains(metric, "worst case", 1), Column("on")]
    if costs:
        columns += [Column("ms", False), Column("MiB", False, 0), Column("parameters", digits=0)]
        columns.append(Column("source images"))
    rows = []
    for row in board.ranked:
        scores = [Entry.of(score.value) if (score := row.score(name)) else Entry() for name in streams]
        worst = row.worst(board.streams)
        gain_and_stream = [Entry(worst[0]), Entry(text=worst[1])] if worst else [Entry(), Entry()]
        entries = [Entry(row.mean(board.streams)), *scores, *gain_and_stream]
        if costs:
            cost = costs.get(row.first.folder.name, {})
            entries += [Entry(cost.get(key)) for key in ("ms", "memory_mib", "parameters")]
            entries.append(Entry(text=source_words(cost)))
        rows.append((row.name, entries))
    mean = f"mean: over the streams that all are run on, {', '.join(board.streams)}" if board.streams else ""
    worst_case = "worst case: the smallest gain over Source on any of these, a loss below zero, and on which"
    measured = next(iter(costs.values()), {})
    cost_note = f"ms, MiB: of a batch of {measured['batch_size']} on {measured['device']}, alone" if measured else ""
    task = next(iter(board.tables.values())).record["task"]
    ours = reconstruction_note([row.method for row in board.ranked], task)
    parts = (f"{metric.title}, {SPREAD}", mean, worst_case if mean else "", cost_note, ours)
    return Table(TITLE, "; ".join(filter(None, parts)) + ".", columns, rows)


def source_words(cost: Mapping[str, Any]) -> str:
    """Which source images a method needs, in a word or two."""
    if not cost:
        return ""
    count = cost["source_images"]
    return f"{count}{', labelled' if cost['source_labels'] else ''}" if count else "none"


def board_pictures(board: Board, costs: Costs) -> list[Picture]:
    """The score on the first stream against the time of a batch, and against held-out domains, where both are known."""
    if FIRST not in board.tables:
        return []
    points = [_point(row, costs) for row in board.ranked if FIRST in row.rows]
    source = next((point["score"] for point in points if point["method"] == SOURCE), math.inf)
    near = [point for point in points if board.metric.higher or point["score"] <= _FAR * source]
    away = [f"{point['name']} ({point['score']:.1f})" for point in points if point not in near]
    left_out = f" Not shown, far above Source: {', '.join(away)}." if away else ""
    record, pictures = board.tables[FIRST].record, []
    for name, key, draw in (("cost", "ms", _draw_cost), ("held-out", "tested", _draw_tested)):
        known = [point for point in near if point[key] is not None]
        if len(known) > 1:
            with look():
                figure, grid = new_figure(8.4, 4.8)
                draw(grid[0, 0], known, board.metric.title)
                handles, columns = grid[0, 0].get_legend_handles_labels(), 1 + len(known) // 24
                figure.legend(*handles, loc="outside right center", ncols=columns)
                about = f"{_CAPTIONS[name]}. {record['benchmark']}, {record_note(record)}.{left_out}"
                pictures.append(make_picture(figure, name, about))
    return pictures


def _point(row: Ranked, costs: Costs) -> Point:
    score, tested = row.score(FIRST), row.score(HELD_OUT)
    assert score is not None
    about = {"name": row.name, "method": row.method, "ms": costs.get(row.first.folder.name, {}).get("ms")}
    value = score.value
    return {**about, "score": value.mean, "deviation": value.deviation, "tested": tested and tested.value.mean}


def _draw_cost(axes: Axes, points: Sequence[Point], title: str) -> None:
    """To the left is cheaper, below is better (of mIoU, above)."""
    draw_methods(axes, points, "ms", "time of a batch, ms")
    axes.set_ylabel(f"{FIRST}, {title}")


def _draw_tested(axes: Axes, points: Sequence[Point], title: str) -> None:
    """The score on domains that a method never learnt from, against the stream; dotted lines are Source's."""
    for point, (colour, marker) in zip(points, method_styles([one["method"] for one in points]), strict=True):
        axes.plot(point["score"], point["tested"], marker, color=colour, label=point["name"])
        if point["method"] == SOURCE:
            axes.axvline(point["score"], color=GREY, linestyle=":", linewidth=1, zorder=0)
            axes.axhline(point["tested"], color=GREY, linestyle=":", linewidth=1, zorder=0)
    axes.set(xlabel=f"{FIRST}, {title}", ylabel=f"{HELD_OUT}, {title}")
    axes.margins(0.1)
    axes.grid(True)


def board_markdown(board: Board, costs: Costs, pictures: Sequence[Picture], figures: str = "figures") -> str:
    """The leaderboard as a document: the table, the figures, then every stream with its record and intervals."""
    streams = Markup(Layout().markdown(list(board.tables.values())))
    about = {"title": TITLE, "outcome": outcome(board), "sheet": board_table(board, costs), "pictures": pictures}
    return render("board.md", figures=Markup(figures), streams=streams, **about)


def board_page(board: Board, costs: Costs, pictures: Sequence[Picture]) -> str:
    """The whole page, with every stream below the table."""
    streams = [(table.protocol, means_table(table), table_record(table)) for table in board.tables.values()]
    about = {"title": TITLE, "outcome": outcome(board), "sheet": board_table(board, costs), "pictures": pictures}
    return render("board.html", streams=streams, **about)


def outcome(board: Board) -> str:
    """Who is best in the mean, and who in the worst case."""
    found = [(row.name, row.mean(board.streams), row.worst(board.streams)) for row in board.ranked]
    whole = [(name, mean, worst) for name, mean, worst in found if mean is not None and worst is not None]
    if not whole:
        return f"{len(found)} rows; no method was run on all streams yet."
    (best, mean, _), (safest, _, worst) = whole[0], max(whole, key=lambda one: one[2][0])
    best_mean = f"Of {len(whole)} methods on all streams, {best} has the best mean ({mean:.2f})"
    return f"{best_mean}; {safest} has the best worst case ({worst[0]:+z.2f} against Source, {worst[1]})."
