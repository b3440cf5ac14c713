"""A leaderboard as a table, as figures, as Markdown, and as a page that sorts itself."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from testdg.report.analyses.scores import draw_methods
from testdg.report.bench import SPREAD, bench_markdown, means_table, table_record
from testdg.report.page.figures import Picture, make_picture
from testdg.report.page.html import html_details, html_figure, html_lines, html_table, whole_page
from testdg.report.record import reconstruction_note, record_note
from testdg.report.safe import escape, markdown
from testdg.report.style import GREY, look, method_styles, new_figure
from testdg.report.table import Column, Entry, Table, markdown_table
from testdg.spec import SOURCE
from testdg.studies import BenchTable
from testdg.studies.analyses.cost import Costs
from testdg.studies.leaderboard import FIRST, HELD_OUT, Board, Ranked

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
    columns = [Column.of(metric, "mean", 1, summary=True)]
    columns += [Column.of(metric, name, 1) for name in (*board.streams, *board.others)]
    columns += [Column.gains(metric, "worst case", 1), Column("on")]
    if costs:
        columns += [Column("ms", False), Column("MiB", False, 0), Column("parameters", digits=0)]
        columns.append(Column("source images"))
    rows = [(row.name, _entries(row, board, costs)) for row in board.ranked]
    return Table(TITLE, _note(board, costs), columns, rows)


def _note(board: Board, costs: Costs) -> str:
    metric = board.metric
    mean = f"mean: over the streams that all are run on, {', '.join(board.streams)}" if board.streams else ""
    worst = "worst case: the smallest gain over Source on any of these, a loss below zero, and on which" if mean else ""
    measured = next(iter(costs.values()), {})
    cost = f"ms, MiB: of a batch of {measured['batch_size']} on {measured['device']}, alone" if measured else ""
    task = next(iter(board.tables.values())).record["task"]
    ours = reconstruction_note([row.method for row in board.ranked], task)
    return "; ".join(filter(None, (f"{metric.title}, {SPREAD}", mean, worst, cost, ours))) + "."


def _entries(row: Ranked, board: Board, costs: Costs) -> list[Entry]:
    every = (*board.streams, *board.others)
    scores = [Entry.of(score.value) if (score := row.score(name)) else Entry() for name in every]
    worst = row.worst(board.streams)
    gain_and_stream = [Entry(worst[0]), Entry(text=worst[1])] if worst else [Entry(), Entry()]
    entries = [Entry(row.mean(board.streams)), *scores, *gain_and_stream]
    if costs:
        cost = costs.get(row.first.folder.name, {})
        entries += [Entry(cost.get(key)) for key in ("ms", "memory_mib", "parameters")]
        entries.append(Entry(text=source_words(cost)))
    return entries


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


def _draw_cost(axes: Any, points: Sequence[Point], title: str) -> None:
    """To the left is cheaper, below is better (of mIoU, above)."""
    draw_methods(axes, points, "ms", "time of a batch, ms")
    axes.set_ylabel(f"{FIRST}, {title}")


def _draw_tested(axes: Any, points: Sequence[Point], title: str) -> None:
    """Where a method stands on domains that it never learnt from; dotted lines are Source's."""
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
    table = board_table(board, costs)
    parts = [f"# {markdown(TITLE)}", markdown(outcome(board)), markdown(table.note), "\n".join(markdown_table(table))]
    parts += [f"![{markdown(one.caption)}]({figures}/{one.name}.png)\n\n{markdown(one.caption)}" for one in pictures]
    return "\n\n".join([*parts, bench_markdown(list(board.tables.values()))])


def board_page(board: Board, costs: Costs, pictures: Sequence[Picture]) -> str:
    """The whole page, with every stream below the table."""
    first = ["<section>", html_table(board_table(board, costs)), *map(html_figure, pictures), "</section>"]
    lead = [f"<p>{escape(outcome(board))}</p>"]
    return whole_page(TITLE, lead, [*first, *map(_section, board.tables.values())])


def _section(table: BenchTable) -> str:
    record = html_details("Record", html_lines(table_record(table)))
    return f"<section><h2>{escape(table.protocol)}</h2>{html_table(means_table(table))}{record}</section>"


def outcome(board: Board) -> str:
    """Who is best in the mean, and who in the worst case."""
    found = [(row.name, row.mean(board.streams), row.worst(board.streams)) for row in board.ranked]
    whole = [(name, mean, worst) for name, mean, worst in found if mean is not None and worst is not None]
    if not whole:
        return f"{len(found)} rows; no method was run on all streams yet."
    (best, mean, _), (safest, _, worst) = whole[0], max(whole, key=lambda one: one[2][0])
    told = f"Of {len(whole)} methods on all streams, {best} has the best mean ({mean:.2f})"
    return f"{told}; {safest} has the best worst case ({worst[0]:+z.2f} against Source, {worst[1]})."
