"""A leaderboard as a table, as Markdown, and as a page that sorts itself."""

from collections.abc import Mapping, Sequence
from typing import Any

from testdg.experiments import BenchTable
from testdg.experiments.analyses.cost import Costs
from testdg.experiments.leaderboard import Board, Ranked
from testdg.report.bench import SPREAD, bench_markdown, means_table, table_record
from testdg.report.page.figures import Picture
from testdg.report.page.html import THEME, html_figure, html_table, whole_page
from testdg.report.safe import escape, markdown
from testdg.report.table import Column, Entry, Table, markdown_table

TITLE = "Leaderboard"


def board_table(board: Board, costs: Costs) -> Table:
    """A row for each method: its score on every stream, the worst case, and what it costs."""
    metric = board.metric
    columns = [Column.of(metric, "mean", 1, summary=True)]
    columns += [Column.of(metric, name, 1) for name in (*board.streams, *board.longer)]
    columns += [Column.gains(metric, "worst case", 1), Column("on")]
    columns += [Column("ms", False), Column("MiB", False, 0), Column("parameters", digits=0), Column("source images")]
    rows = [(row.name, _entries(row, board, costs.get(row.first.folder.name, {}))) for row in board.ranked]
    return Table(TITLE, _note(board, costs), columns, rows)


def _note(board: Board, costs: Costs) -> str:
    metric = board.metric
    mean = f"{metric.title}, {SPREAD}; mean: over the streams that all are run on, {', '.join(board.streams)}"
    worst = "worst case: the smallest gain over Source on any of these, a loss below zero, and on which"
    measured = next(iter(costs.values()), {})
    cost = f"ms, MiB: of a batch of {measured['batch_size']} on {measured['device']}, alone" if measured else ""
    return "; ".join(filter(None, (mean, worst, cost))) + "."


def _entries(row: Ranked, board: Board, cost: Mapping[str, Any]) -> list[Entry]:
    every = (*board.streams, *board.longer)
    scores = [Entry.of(score.value) if (score := row.score(name)) else Entry() for name in every]
    worst = row.worst(board.streams)
    gain_and_stream = [Entry(worst[0]), Entry(text=worst[1])] if worst else [Entry(), Entry()]
    numbers = [Entry(cost.get(key)) for key in ("ms", "memory_mib", "parameters")]
    return [Entry(row.mean(board.streams)), *scores, *gain_and_stream, *numbers, Entry(text=source_words(cost))]


def source_words(cost: Mapping[str, Any]) -> str:
    """Which source images a method needs, in a word or two."""
    if not cost:
        return ""
    count = cost["source_images"]
    return f"{count}{', labelled' if cost['source_labels'] else ''}" if count else "none"


def board_markdown(board: Board, costs: Costs, pictures: Sequence[Picture], figures: str = "figures") -> str:
    """The leaderboard as a document: the table, the figures, then every stream with its record and intervals."""
    table = board_table(board, costs)
    parts = [f"# {markdown(TITLE)}", markdown(outcome(board)), markdown(table.note), "\n".join(markdown_table(table))]
    parts += [f"![{markdown(one.caption)}]({figures}/{one.name}.png)\n\n{markdown(one.caption)}" for one in pictures]
    return "\n\n".join([*parts, bench_markdown(list(board.tables.values()))])


def board_page(board: Board, costs: Costs, pictures: Sequence[Picture]) -> str:
    """The whole page, with every stream below the table."""
    header = ["<header>", THEME, f"<h1>{escape(TITLE)}</h1>", f"<p>{escape(outcome(board))}</p>", "</header>"]
    lead = ["<section>", html_table(board_table(board, costs)), *map(html_figure, pictures), "</section>"]
    return whole_page(TITLE, [*header, "<main>", *lead, *map(_section, board.tables.values()), "</main>"])


def _section(table: BenchTable) -> str:
    lines = "".join(f"<dd>{escape(line)}</dd>" for text in table_record(table) for line in text.split("\n"))
    record = f"<details><summary>Record</summary><dl>{lines}</dl></details>"
    return f"<section><h2>{escape(table.protocol)}</h2>{html_table(means_table(table))}{record}</section>"


def outcome(board: Board) -> str:
    """Who is best in the mean, and who in the worst case."""
    streams = board.streams
    whole = [row for row in board.ranked if row.mean(streams) is not None and row.worst(streams) is not None]
    if not whole:
        return f"{len(board.ranked)} rows; no method was run on all streams yet."
    safest = max(whole, key=lambda row: (row.worst(streams) or (0.0, ""))[0])
    worst = safest.worst(streams)
    assert worst is not None
    best = f"Of {len(whole)} methods on all streams, {whole[0].name} has the best mean ({whole[0].mean(streams):.2f})"
    return f"{best}; {safest.name} has the best worst case ({worst[0]:+z.2f} against Source, {worst[1]})."
